# SPDX-License-Identifier: MIT
# Tables of long generations (eval gsm8k, math, aime, gpqa, mmlu and drift) and the picture of drift in scripts/report.
# Part of that script: it reads files and checks options.
use strict;
use warnings;

# Scores by rule: a problem counts once, with the mean over its samples. {rows, columns, cell, lines}
sub collect_problems {
    my ($command, @files) = @_;
    my (%t, %row, %column, %seen, %sum, %n);
    for my $r (map { @{ $_->{results} } } @files) {
        my $w = $r->{where};
        my ($attn, $budget, $name) = row_of($r);
        next unless wanted_row($attn);
        my ($index, $sample) = map { field($r, $_, 'number', $w) } qw(index sample);
        my $scores = field($r, 'scores', 'object', $w);
        if ($seen{"$name $index $sample"}++) {
            note('results that are there several times count once');
            next;
        }
        $row{$name}++ or push @{ $t{rows} }, { name => $name, attn => $attn, budget => $budget };
        for my $c (sort keys %$scores) {
            $column{$c}++ or push @{ $t{columns} }, $c;
            $sum{$name}{$c}{$index} += field($scores, $c, 'number', $w);
            $n{$name}{$c}{$index}++;
        }
        push @{ $t{cost}{$name} }, $r;
    }
    $t{rows} or fail("no result of $command is left");
    my $problems = max map { $_->{config}{problems} // 0 } @files;
    for my $c (@{ $t{columns} }) {
        $t{wanted}{$c} = $problems;
        for my $name (map { $_->{name} } @{ $t{rows} }) {
            my ($sums, $ns) = ($sum{$name}{$c}, $n{$name}{$c});
            $t{cell}{$name}{$c} = [map { [$_, $sums->{$_} / $ns->{$_}] } sort { $a <=> $b } keys %$sums] if $sums;
        }
    }
    return \%t;
}

# How the answers of a row ended and how long they were.
sub answers_row {
    my ($name, $lines) = @_;
    my $n = @$lines;
    my $share = sub { my ($f) = @_; sprintf '%.1f', 100 * (grep { $f->($_) } @$lines) / $n };
    my $seconds = sum0(map { $_->{seconds} // 0 } @$lines);
    my $tokens = sum0(map { field($_, 'new_tokens', 'number', $_->{where}) } @$lines);
    return [$name, $n, $share->(sub { !grep { defined } values %{ field($_[0], 'answer', 'object', $_[0]{where}) } }),
        $share->(sub { !field($_[0], 'stopped', 'boolean', $_[0]{where}) }),
        $share->(sub { field($_[0], 'loop', 'boolean', $_[0]{where}) }),
        sprintf('%.1f', $tokens / $n), $seconds > 0 ? sprintf('%.1f', $tokens / $seconds) : '-'];
}

sub problem_tables {
    my ($command, @files) = @_;
    my $t = evaluate(collect_problems($command, @files));
    my @names = map { $_->{name} } @{ $t->{rows} };
    my ($head, @rows) = arrange('strategy', \@names, $t->{columns}, sub { $t->{out}{ $_[0] }{ $_[1] } });
    my $n = max values %{ $t->{n} };
    my $note = "$n problem" . ($n == 1 ? '' : 's')
        . '; of several samples the mean. In brackets the 95 % bootstrap interval over problems.';
    $note .= ' Intervals of fewer than ten problems are too narrow.' if $n < 10;
    my $title = ($command =~ s/^eval //r) . ', right answers in %, by rule';
    my @tables = { title => $title, note => $note, head => $head, rows => \@rows };
    push @tables, { title => 'Answers',
        note => 'In % of the answers: without an answer by any rule, at the limit of new tokens, ending in a loop. New '
            . 'tokens an answer, and a second.',
        head => ['strategy', 'answers', 'no answer', 'at the limit', 'loops', 'new tokens', 'tokens/s'],
        rows => [map { answers_row($_, $t->{cost}{$_}) } @names] } if $command ne 'eval mmlu';
    return (@tables, cost_table($t));
}

# ---- drift ----

# [row, its lines in the order of the new tokens]
sub collect_drift {
    my (%lines, %seen, @rows);
    for my $r (map { @{ $_->{results} } } @_) {
        my ($attn, $budget, $name) = row_of($r);
        next unless wanted_row($attn);
        my $at = field($r, 'generated', 'number', $r->{where});
        if ($seen{"$name $at"}++) {
            note('results that are there several times count once');
            next;
        }
        push @rows, { name => $name, attn => $attn, budget => $budget } unless $lines{$name};
        push @{ $lines{$name} }, $r;
    }
    @rows or fail('no result of eval drift is left');
    $_->{lines} = [sort { $a->{generated} <=> $b->{generated} } @{ $lines{ $_->{name} } }] for @rows;
    return \@rows;
}

# First, middle and last interval of each row.
sub drift_tables {
    my ($rows) = @_;
    my @columns = (['tokens_per_s', '%.0f', 1], ['kv_bytes', '%.1f', 1e6], ['index_bytes', '%.2f', 1e6],
        ['attended', '%.0f', 1], ['recall', '%.3f', 1], ['mass', '%.3f', 1], ['newest', '%.1f', 1]);
    my @out;
    for my $r (@$rows) {
        my @l = @{ $r->{lines} };
        my %at = map { $_ => 1 } 0, int($#l / 2), $#l;
        for my $x (map { $l[$_] } sort { $a <=> $b } keys %at) {
            push @out, [$r->{name}, length_label($x->{generated}), map {
                my ($key, $format, $scale) = @$_;
                my $v = field($x, $key, 'number|null', $x->{where});
                defined $v ? sprintf($format, $v / $scale) : '-';
            } @columns];
        }
    }
    return { title => 'Drift over a long generation', note => 'First, middle and last interval of new tokens.',
        head => ['strategy', 'new tokens', 'tokens/s', 'KV MB', 'index MB', 'attended', 'recall', 'mass', 'newest'],
        rows => \@out };
}

sub plot_drift {
    my ($png, $command, @files) = @_;
    my @curves = map {
        { label => $_->{name}, attn => $_->{attn}, points => [map { [$_->{generated}, field($_, 'mass', 'number',
            $_->{where})] } @{ $_->{lines} }] }
    } @{ collect_drift(@files) };
    my %o = (xlabel => 'New tokens', ylabel => 'Mass of exact attention', yrange => '0:1.04');
    return plot_curves($png, \%o, @curves);
}

1;
