# SPDX-License-Identifier: MIT
# Tables of `bench` in scripts/report. Part of that script: it reads files and checks options.
use strict;
use warnings;
use List::Util qw(max min sum0);

# Rows of results; what older files lack is not there.
sub collect_bench {
    my ($phases, @files) = @_;
    my @rows;
    for my $r (grep { !exists $_->{draft} } map { @{ $_->{results} } } @files) {
        my $w = $r->{where};
        my %e;
        @e{qw(attn budget name)} = row_of($r);
        $e{$_} = field($r, $_, 'number', $w) for qw(ctx batch tokens_per_s spread);
        $e{$_} = field($r, $_, 'string', $w) for qw(phase model);
        $e{tokens_per_s} > 0 or fail("$w: 'tokens_per_s' is not positive");
        $e{$_} = defined $r->{$_} ? field($r, $_, 'string', $w) : '-' for qw(kv weights);
        for my $k (qw(bytes_per_token read_gbps limit_share)) {
            $e{$k} = field($r, $k, 'number', $w) if defined $r->{$k};
        }
        $e{unsure} = 1
            if defined $r->{samples} && !field(field($r, 'samples', 'object', $w), 'enough', 'boolean', "$w samples");
        push @rows, \%e if wanted_row($e{attn}) && $phases->{ $e{phase} };
    }
    return \@rows;
}

# Rows of `bench --draft`: speed with drafts, and that of single steps beside it.
sub collect_drafts {
    my @rows;
    for my $r (grep { exists $_->{draft} } map { @{ $_->{results} } } @_) {
        my $w = $r->{where};
        my %e;
        $e{$_} = field($r, $_, 'number', $w)
            for qw(ctx accept single_tokens_per_s tokens_per_s times drafted accepted_length spread);
        $e{$_} = field($r, $_, 'string', $w) for qw(model attn draft weights kv);
        $e{draft_weights} = field($r, 'draft_weights', 'string|null', $w) if exists $r->{draft_weights};
        $e{unsure} = !field($r, 'enough', 'boolean', $w);
        $e{$_} > 0 or fail("$w: '$_' is not positive") for qw(single_tokens_per_s tokens_per_s);
        $e{name} = $e{draft} . (defined $e{draft_weights} ? ", weights $e{draft_weights}" : '');
        push @rows, \%e if wanted_row($e{draft}) || wanted_row($e{attn});
    }
    return \@rows;
}

# Whether files have what a picture of `bench` needs.
sub has_speed {
    my ($kind, @files) = @_;
    return @{ collect_drafts(@files) } > 0 if $kind eq 'drafts';
    return grep { $_->{ctx} > 0 } @{ collect_bench({ decode => 1 }, @files) };
}

# Milliseconds of a decode step: of all sequences of its batch.
sub step_ms { my ($r) = @_; 1000 * $r->{batch} / $r->{tokens_per_s} }

# The line through [x, y] with the least sum of squared relative errors: (value at 0, slope). Steps at long contexts
# take a thousand times as long as at short ones; without weights they alone would decide.
sub fit_line {
    my ($w, $wx, $wy, $wxx, $wxy) = (0) x 5;
    for my $p (@_) {
        my ($x, $y) = @$p;
        my $weight = $y > 0 ? 1 / ($y * $y) : 1;
        $w += $weight;
        $wx += $weight * $x;
        $wy += $weight * $y;
        $wxx += $weight * $x * $x;
        $wxy += $weight * $x * $y;
    }
    my $slope = ($w * $wxy - $wx * $wy) / ($w * $wxx - $wx * $wx);
    return (($wy - $slope * $wx) / $w, $slope);
}

sub middle_of {
    my @s = sort { $a <=> $b } @_;
    return @s % 2 ? $s[$#s / 2] : ($s[@s / 2 - 1] + $s[@s / 2]) / 2;
}

# Decode rows that differ by their context alone, [label, rows by context], where there are two contexts at least.
sub series_of {
    my ($rows) = @_;
    my (%by, @order);
    my @decode = grep { $_->{phase} eq 'decode' && $_->{ctx} > 0 } @$rows;
    my @keys = qw(model weights kv batch);
    my %several = map { my $k = $_; my %v = map { $_->{$k} => 1 } @decode; $k => keys %v > 1 } @keys;
    for my $r (@decode) {
        my $label = join ', ', $r->{name}, map { $several{$_} ? ($_ eq 'batch' ? "batch $r->{$_}" : $r->{$_}) : () }
            @keys;
        push @order, $label unless $by{$label};
        $by{$label}{ $r->{ctx} } //= $r;
    }
    return map { [$_, $by{$_}] } grep { keys %{ $by{$_} } > 1 } @order;
}

# What a token of context costs a step, and what reading its bytes costs at least.
sub slope_cells {
    my ($at) = @_;
    my @rows = map { $at->{$_} } sort { $a <=> $b } keys %$at;
    my ($fixed, $slope) = fit_line(map { [$_->{ctx}, 1e6 * step_ms($_)] } @rows);
    my @cells = (sprintf('%.3f', $fixed / 1e6), sprintf('%.2f', $slope));
    my @read = map { $_->{read_gbps} // () } @rows;
    return (@cells, '-', '-', '-') if @read < @rows || grep { !defined $_->{bytes_per_token} } @rows;
    my ($read, $mark) = (middle_of(@read), max(@read) > 1.12 * min(@read) ? '*' : '');
    my (undef, $bytes) = fit_line(map { [$_->{ctx}, $_->{batch} * $_->{bytes_per_token}] } @rows);
    my $floor = $bytes / $read; # bytes over 10^9 bytes/s are ns
    return (@cells, sprintf('%.1f%s', $read, $mark), sprintf('%.2f', $floor),
        $floor > 0.005 && $slope > 0 ? sprintf('%.0f %%', 100 * $floor / $slope) : '-');
}

sub slope_table {
    my ($rows) = @_;
    my @series = series_of($rows) or return;
    my %ctx = map { $_ => 1 } map { keys %{ $_->[1] } } @series;
    my @ctx = sort { $a <=> $b } keys %ctx;
    my @rows = map { my ($label, $at) = @$_;
        [$label, (map { $at->{$_} ? sprintf('%.2f%s', step_ms($at->{$_}), $at->{$_}{unsure} ? '?' : '') : '-' } @ctx),
            slope_cells($at)] } @series;
    my $note = 'Milliseconds of a step at each context; the line through them (least squares of relative errors): its'
        . ' value at context 0 and what a token of context adds; GB/s read beside them (median); the floor, what the'
        . ' bytes that a token of context adds take at that bandwidth; and how much of the slope the floor is.';
    my $text = join ' ', map { @$_ } @rows;
    $note .= ' *: the bandwidth differs by more than 12 % between contexts.' if $text =~ /\d\*/;
    $note .= ' ?: too few samples counted.' if $text =~ /\d\?/;
    return { title => 'Cost of a decode step against context', note => $note,
        head => ['strategy', (map { length_label($_) } @ctx), 'fixed ms', 'ns/token', 'GB/s', 'floor ns/token',
            'floor'], rows => \@rows };
}

sub draft_table {
    my ($rows) = @_;
    my @rows = map { my $r = $_; [$r->{name}, @$r{qw(model weights kv)}, length_label($r->{ctx}), "$r->{accept}",
        sprintf('%.1f', $r->{single_tokens_per_s}), sprintf('%.1f%s', $r->{tokens_per_s}, $r->{unsure} ? '?' : ''),
        sprintf('%.2f', $r->{times}), sprintf('%.2f', $r->{drafted}), sprintf('%.2f', $r->{accepted_length})] } @$rows;
    my $note = 'Full attention through drafts, of which a given share is right, against its single steps; drafted and'
        . ' length: tokens of a verification, its own included in the latter.';
    $note .= ' ?: too few samples counted, all were taken.' if grep { $_->{unsure} } @$rows;
    return { title => 'Drafts', note => $note, head => ['draft', 'model', 'weights', 'KV', 'context', 'right',
        'single/s', 'tokens/s', 'times', 'drafted', 'length'], rows => \@rows };
}

sub speed_tables {
    my ($rows) = @_;
    my $optional = sub { my ($r, $k, $f, $scale) = @_; defined $r->{$k} ? sprintf $f, $scale * $r->{$k} : '-' };
    my @rows = map { my $r = $_; ["$r->{phase}, $r->{name}", @$r{qw(model weights kv)}, length_label($r->{ctx}),
        $r->{batch}, sprintf('%.1f%s', $r->{tokens_per_s}, $r->{unsure} ? '?' : ''),
        $r->{phase} eq 'decode' ? sprintf('%.3f', step_ms($r)) : '-', sprintf('%.1f %%', 100 * $r->{spread}),
        $optional->($r, 'read_gbps', '%.1f', 1), $optional->($r, 'limit_share', '%.1f %%', 100)] } @$rows;
    my $note = 'Medians of the samples that count; spread: of these, over the median; GB/s: memory read beside them;'
        . ' share: of that bandwidth (decode) or of the rate of products (prefill).';
    $note .= ' ?: too few samples counted, all were taken.' if grep { $_->{unsure} } @$rows;
    my $slopes = slope_table($rows);
    return ({ title => 'Speed', note => $note, head => ['phase, strategy', 'model', 'weights', 'KV', 'context', 'batch',
        'tokens/s', 'ms a step', 'spread', 'GB/s', 'share'], rows => \@rows }, $slopes ? $slopes : ());
}

# Of all the files have: strategies, drafts.
sub bench_tables {
    my (@files) = @_;
    my ($rows, $drafts) = (collect_bench({ prefill => 1, decode => 1 }, @files), collect_drafts(@files));
    @$rows || @$drafts or fail('no result of bench is left');
    return (@$rows ? speed_tables($rows) : (), @$drafts ? draft_table($drafts) : ());
}

1;
