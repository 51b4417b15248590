# SPDX-License-Identifier: MIT
# Table and picture of `eval accept` in scripts/report. Part of that script: it reads files and checks options.
use strict;
use warnings;
use Digest::MD5 qw(md5_hex);

# Wilson's 95 % interval of k in n, as the command prints it.
sub wilson {
    my ($k, $n) = @_;
    my ($p, $z2) = ($k / $n, 1.959963984540054**2);
    my ($middle, $scale) = ($p + $z2 / (2 * $n), 1 + $z2 / $n);
    my $half = sqrt($z2 * ($p * (1 - $p) / $n + $z2 / (4 * $n * $n)));
    return map { $_ / $scale } $middle - $half, $middle + $half;
}

# What tells a file's pieces of text from those of others: the text and the seed; where it names no text, its numbers.
sub pieces_of {
    my ($f) = @_;
    my $o = $f->{options};
    my $text = $o->{text_sha256} // md5_hex(JSON::PP->new->canonical->encode(
        [map { my %r = %$_; delete $r{where}; \%r } @{ $f->{results} }]));
    return "$text " . ($o->{seed} // '');
}

# Whether the pieces of a result were counted before: all of them, or (an error) some.
sub accept_repeats {
    my ($seen, $key, $r) = @_;
    my @ctx = map { $_->{ctx} // 0 } @{ $r->{by_context} // [{}] };
    my @again = grep { $seen->{"$key $_"}++ } @ctx or return 0;
    @again == @ctx or fail("$r->{where}: its pieces of $again[0] tokens are in another file too, but not all of its pieces");
    note('results that are there several times count once');
    return 1;
}

# Counts of a strategy at a temperature, added up over the files: of several texts, say.
sub collect_accept {
    my (%by, @rows, %seen);
    for my $r (map { my $of = pieces_of($_); map { { %$_, of => $of } } @{ $_->{results} } } @_) {
        my $w = $r->{where};
        my ($attn, $budget, $name) = row_of($r);
        my ($temp, $n) = map { field($r, $_, 'number', $w) } qw(temp n);
        next if !wanted_row($attn) || !$n;
        next if accept_repeats(\%seen, join(' ', $r->{of}, $name, $temp, $r->{kv} // ''), $r);
        my $e = $by{"$name $temp"} //= do {
            push @rows, my $new = { name => $name, attn => $attn, budget => $budget, temp => $temp };
            $new;
        };
        $e->{$_} += field($r, $_, 'number', $w) for qw(n tokens differences);
        my @right = @{ field($r, 'right', 'list', $w) };
        $e->{right}[$_] += $right[$_] for 0 .. $#right;
    }
    @rows or fail('no result of eval accept is left');
    for my $e (@rows) {
        my @reached = ($e->{n}, @{ $e->{right} });
        $e->{agreement} = $e->{right}[0] / $e->{n};
        $e->{ci} = [wilson($e->{right}[0], $e->{n})];
        $e->{h8} = $reached[7] ? $reached[8] / $reached[7] : undef;
        $e->{run} = $e->{differences} ? $e->{tokens} / $e->{differences} : undef;
        $e->{length} = 1 + sum0(@{ $e->{right} }[0 .. 3]) / $e->{n};
    }
    return \@rows;
}

sub accept_tables {
    my ($rows) = @_;
    my $cell = sub { my ($format, $x) = @_; defined $x ? sprintf $format, $x : '-' };
    my @rows = map { [$_->{name}, $_->{temp}, $_->{n}, sprintf('%.4f [%.3f, %.3f]', $_->{agreement}, @{ $_->{ci} }),
        $cell->('%.4f', $_->{h8}), $cell->('%.1f', $_->{run}), sprintf('%.3f', $_->{length})] } @$rows;
    return { title => 'Tokens that are those of full attention',
        note => 'agreement: over exact rows, with Wilson\'s interval; h8: behind seven right tokens of its own; run: tokens '
            . 'from one difference to the next; E(4): tokens that a verification of four drafted ones yields.',
        head => ['strategy', 'temperature', 'drafts', 'agreement', 'h8', 'run', 'E(4)'], rows => \@rows };
}

sub plot_accept {
    my ($png, $command, @files) = @_;
    my $rows = collect_accept(@files);
    my %temps = map { $_->{temp} => 1 } @$rows;
    for my $r (@$rows) { $r->{curve} = "$r->{attn}, T = $r->{temp}" if keys %temps > 1 }
    my %o = (xlabel => 'Budget (tokens)', ylabel => 'Tokens that are full attention\'s', yrange => '*:1');
    return plot_curves($png, \%o, budget_curves($rows, sub { ($_[0]{agreement}, @{ $_[0]{ci} }) }));
}

1;
