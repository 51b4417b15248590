# SPDX-License-Identifier: MIT
# Pictures of scripts/report, by gnuplot. Part of that script: it reads files, collects numbers and checks options.
use strict;
use warnings;
use Encode qw(encode_utf8);
use File::Temp;
use List::Util qw(max min);

our (%opt, %plots);
use constant DEPTHS => 10; # most bins of the heat map

# Okabe and Ito's colours, which the colour-blind tell apart, each with its own marker and dashes: [colour, marker,
# dashes]. A strategy has the same look in all pictures; one that is not known here takes a free one.
my %look = (
    full      => ['#000000', 2,  1],
    streaming => ['#0072B2', 7,  1],
    snapkv    => ['#D55E00', 5,  2],
    quest     => ['#009E73', 9,  4],
    fier      => ['#CC79A7', 13, 3],
    h2o       => ['#E69F00', 11, 5],
    pariskv   => ['#56B4E9', 15, 2],
    tova      => ['#999999', 6,  1],
    actqkv    => ['#0072B2', 4,  3],
    infllm    => ['#009E73', 6,  2],
    mikv      => ['#CC79A7', 8,  2],
    tokenselect => ['#CC79A7', 8,  3],
    kivi      => ['#D55E00', 8,  1],
    logquant  => ['#009E73', 10, 2],
);

# Looks of curves by strategy; several of one strategy (budgets, parameters) share its colour.
sub looks {
    my %turn;
    my %free = map { $_ => 1 } grep { $_ ne 'full' } keys %look;
    my @name = map { s/:.*//r } @_;
    delete $free{$_} for @name;
    my @looks;
    for my $name (@name) {
        $look{$name} //= $look{ (sort(keys %free), 'h2o')[0] };
        delete @free{ grep { $look{$_} == $look{$name} } keys %free };
        my ($colour, $marker, $dash) = @{ $look{$name} };
        my $k = $turn{$name}++;
        ($marker, $dash) = (($marker + $k - 1) % 15 + 1, ($dash + $k - 1) % 6 + 1) if $k;
        push @looks, [$colour, $marker, $dash];
    }
    return @looks;
}

sub quoted { my ($s) = @_; $s =~ s/(["\\])/\\$1/g; "\"$s\"" }

# Ticks at powers of two, with 1k for 1,024; the values themselves where there are no two of these.
sub ticks {
    my @x = sort { $a <=> $b } @_;
    my @t = grep { $_ >= $x[0] && $_ <= $x[-1] } map { 2**$_ } 0 .. 40;
    if (@t < 2) { my %s; @t = grep { !$s{$_}++ } @x }
    while (@t > 10) { @t = map { $t[2 * $_] } 0 .. $#t / 2 }
    return '(' . join(', ', map { quoted(length_label($_)) . " $_" } @t) . ')';
}

sub terminal {
    my ($png, $width, $height) = @_;
    my $s = "set encoding utf8\nsize = " . ($png ? 0.8 : 0.55) . "\n";
    return $s . ($png ? sprintf("set terminal pngcairo noenhanced size %d,%d font 'sans,11' fontscale 2.2"
        . " linewidth 2.2 pointscale 2.2\n", 2.2 * $width, 2.2 * $height)
        : "set terminal svg noenhanced size $width,$height font 'Helvetica,16' background 'white'\n");
}

my $frame = <<'END';
set border 3 lw 1.2
set tics nomirror out
set grid ytics lc rgb '#dddddd' lt 1 lw 0.8
END

# Curves {label, attn, points: [x, y, low, high]}, or flat: a level line. x in powers of two. Long labels (`below`) are
# under the picture, one a line.
sub plot_curves {
    my ($png, $o, @curves) = @_;
    my @look = looks(map { $_->{attn} } @curves);
    my @x = map { $_->[0] } map { @{ $_->{points} } } grep { !$_->{flat} } @curves;
    @x or fail("--plot $opt{plot}: no result with a budget");
    my ($low, $high) = (min(@x), max(@x));
    my $pad = $low == $high ? 1.5 : ($high / $low)**0.04;
    my $closer = $png ? '' : "set xlabel offset 0,0.6\nset ylabel offset 0.8\nset xtics offset 0,0.3\n";
    my $key = $o->{below} ? 'outside below left maxcols 1' : 'outside right center';
    my $s = terminal($png, 640, $o->{below} ? 340 + 22 * @curves : 380) . $closer . $frame . "set logscale x 2\nset xtics " . ticks(@x) . "\n"
        . sprintf("set xrange [%g:%g]\nset yrange [%s]\n", $low / $pad, $high * $pad, $o->{yrange} // '*:*')
        . 'set xlabel ' . quoted($o->{xlabel}) . "\nset ylabel " . quoted($o->{ylabel})
        . "\nset key $key Left reverse samplen 3.5 spacing " . ($png ? 1.25 : 0.95) . " width 1\n";
    my @plots;
    for my $i (0 .. $#curves) {
        my $c = $curves[$i];
        my ($colour, $marker, $dash) = @{ $look[$i] };
        my $line = "lc rgb '$colour' dt $dash lw 2";
        my $title = 'title ' . quoted($c->{label});
        if ($c->{flat}) {
            push @plots, "$c->{points}[0][1] with lines lc rgb '$colour' dt 2 lw 2 $title";
            next;
        }
        my $bars = !grep { !defined $_->[2] } @{ $c->{points} };
        my $dodge = $bars ? ($high / $low)**(0.006 * ($i - $#curves / 2)) : 1; # bars beside each other
        $s .= "\$c$i << EOD\n" . join('', map { join(' ', $_->[0] * $dodge, grep { defined } @$_[1 .. 3]) . "\n" }
            sort { $a->[0] <=> $b->[0] } @{ $c->{points} }) . "EOD\n";
        push @plots, "\$c$i with yerrorbars lc rgb '$colour' dt 1 lw 1.2 ps 0 notitle" if $bars;
        if (@{ $c->{points} } <= 16) {
            push @plots, "\$c$i using 1:2 with linespoints $line pt $marker ps size $title";
            next;
        }
        my @marks = grep { is_power($_->[0]) } @{ $c->{points} };
        $s .= "\$m$i << EOD\n" . join('', map { "$_->[0] $_->[1]\n" } @marks) . "EOD\n";
        push @plots, "\$c$i with lines $line notitle",
            "\$m$i with points lc rgb '$colour' pt $marker ps size notitle",
            "keyentry with linespoints $line pt $marker ps size $title";
    }
    return $s . 'plot ' . join(", \\\n  ", @plots) . "\n";
}

# Curves over the budgets; a strategy without budgets is a level line.
sub budget_curves {
    my ($rows, $point) = @_;
    my (%curve, @order);
    for my $r (@$rows) {
        my $key = $r->{curve} // $r->{attn};
        push @order, $key unless $curve{$key};
        my $c = $curve{$key} //= { label => $key, attn => $r->{attn}, flat => !defined $r->{budget} };
        push @{ $c->{points} }, [$r->{budget} // 0, $point->($r)];
    }
    return map { $curve{$_} } @order;
}

# The mean of RULER's tasks at each length.
sub plot_lengths {
    my ($png, $command, @files) = @_;
    my (%curve, @order, %tasks);
    for my $part (each_length(@files)) {
        my ($n, @of) = @$part;
        my $t = evaluate(collect_scores($command, @of));
        my $n_tasks = @{ $t->{columns} };
        $tasks{ $n_tasks == 1 ? $t->{columns}[0] : "mean of $n_tasks tasks" } = 1;
        for my $r (@{ $t->{rows} }) {
            push @order, $r->{name} unless $curve{ $r->{name} };
            my $c = $curve{ $r->{name} } //= { label => $r->{name}, attn => $r->{attn} };
            my $cell = $t->{average}{ $r->{name} };
            push @{ $c->{points} }, [$n, $cell->{score}, @{ $cell->{ci} }] if $n;
        }
    }
    my @curves = grep { $_->{points} } @curve{@order} or fail('--plot score: no result of eval ruler with a length');
    keys %tasks == 1 or note('--plot score: the lengths have different numbers of tasks');
    my %o = (xlabel => 'Length (tokens)', ylabel => 'RULER, ' . join(' or ', sort keys %tasks),
        yrange => percent_range(@curves));
    return plot_curves($png, \%o, @curves);
}

sub plot_score {
    my ($png, $command, @files) = @_;
    return plot_lengths(@_) if $command eq 'eval ruler';
    my $t = evaluate(collect_scores($command, @files));
    my $of = $command eq 'eval longbench2' ? 'overall' : @{ $t->{columns} } == 1 ? $t->{columns}[0] : undef;
    my @curves = budget_curves($t->{rows}, sub {
        my $name = $_[0]{name};
        my $cell = defined $of ? $t->{out}{$name}{$of} : $t->{average}{$name};
        return ($cell->{score}, @{ $cell->{ci} });
    });
    my $ylabel = $command eq 'passkey' ? 'Passkeys found (%)' : $command eq 'eval niah' ? 'Needle found (%)'
        : defined $of ? "Score, $of (%)" : 'Average score, ' . @{ $t->{columns} } . ' datasets (%)';
    my %o = (xlabel => 'Budget (tokens)', ylabel => $ylabel, yrange => percent_range(@curves));
    return plot_curves($png, \%o, @curves);
}

# Of percentages: from 0, and room above those near 100.
sub percent_range {
    my $most = max map { $_->[3] // $_->[1] } map { @{ $_->{points} } } @_;
    return $most > 90 ? '0:104' : '0:*';
}

sub plot_recall {
    my ($png, $command, @files) = @_;
    my $rows = collect_recall(@files);
    my %ctx = map { $_->{ctx} => 1 } @$rows;
    for my $r (@$rows) { $r->{curve} = "$r->{attn}, " . length_label($r->{ctx}) if keys %ctx > 1 }
    my @with = grep { defined $_->{budget} } @$rows;
    return plot_curves($png, { xlabel => 'Budget (tokens)', ylabel => 'Recall of the best tokens', yrange => '0:1' },
        budget_curves(\@with, sub { $_[0]{recall} }));
}

sub plot_perplexity {
    my ($png, $command, @files) = @_;
    my $t = collect_pg19(@files);
    my @curves = map {
        my $r = $_;
        my $p = $t->{points}{ $r->{name} };
        { label => $r->{name}, attn => $r->{attn}, points => [map { [$_, perplexity_of($p->{$_})] } keys %$p] };
    } @{ $t->{rows} };
    return plot_curves($png, { xlabel => 'Length (tokens)', ylabel => 'Perplexity' }, @curves);
}

sub plot_speed {
    my ($png, $command, @files) = @_;
    my $rows = collect_bench({ decode => 1 }, @files);
    @$rows or fail('no result of bench is left');
    @$rows = grep { $_->{ctx} > 0 } @$rows or fail('--plot speed: no result with a context');
    my %models = map { $_->{model} => 1 } @$rows;
    my %batches = map { $_->{batch} => 1 } @$rows;
    my (%curve, @order);
    for my $r (@$rows) {
        my $key = $r->{name} . (keys %models > 1 ? ", $r->{model}" : '')
            . (keys %batches > 1 ? ", batch $r->{batch}" : '');
        push @order, $key unless $curve{$key};
        my $c = $curve{$key} //= { label => $key, attn => $r->{attn} };
        push @{ $c->{points} }, [$r->{ctx}, step_ms($r)];
    }
    my %o = (xlabel => 'Context length (tokens)', ylabel => 'Time of a decode step (ms)', yrange => '0:*');
    return plot_curves($png, \%o, map { $curve{$_} } @order);
}

# Tokens a second: full attention step by step, through drafts, and strategies by themselves. Rows are [label, strategy
# whose look it has, context, tokens a second]; of a context that several files have the fastest single steps count.
sub draft_points {
    my (@files) = @_;
    my $drafts = collect_drafts(@files);
    @$drafts or fail('--plot drafts: no result of bench --draft');
    my @alone = grep { $_->{batch} == 1 } @{ collect_bench({ decode => 1 }, @files) };
    my %several = map { my $k = $_; my %v = map { $_->{$k} ne '-' ? ($_->{$k} => 1) : () } @$drafts, @alone; $k => keys %v > 1 }
        qw(model weights kv);
    my %accept = map { $_->{accept} => 1 } @$drafts;
    my $of = sub { my ($r) = @_; join '', map { $several{$_} ? ", $r->{$_}" : () } qw(model weights kv) };
    my @rows = map { ["$_->{attn}" . $of->($_), $_->{attn}, $_->{ctx}, $_->{single_tokens_per_s}] } @$drafts;
    push @rows, map { my $r = $_; ["$r->{attn}, drafts by " . $r->{name} =~ s/:budget=/ /r
        . (keys %accept > 1 ? " ($r->{accept} right)" : '') . $of->($r), $r->{draft} =~ s/^ngram,//r, $r->{ctx}, $r->{tokens_per_s}] } @$drafts;
    push @rows, map { [($_->{attn} eq 'full' ? 'full' : "$_->{name} alone") . $of->($_), $_->{attn}, $_->{ctx},
        $_->{tokens_per_s}] } @alone;
    return grep { $_->[2] > 0 } @rows;
}

sub plot_drafts {
    my ($png, $command, @files) = @_;
    my (%curve, %best, @order);
    for my $r (draft_points(@files)) {
        my ($label, $attn, $ctx, $speed) = @$r;
        push @order, $label unless $curve{$label};
        $curve{$label} //= { label => $label, attn => $attn };
        $best{$label}{$ctx} = max($speed, $best{$label}{$ctx} // 0);
    }
    @order or fail('--plot drafts: no result with a context');
    for my $l (@order) { $curve{$l}{points} = [map { [$_, $best{$l}{$_}] } keys %{ $best{$l} }] }
    my %o = (xlabel => 'Context length (tokens)', ylabel => 'Tokens a second', yrange => '0:*', below => 1);
    return plot_curves($png, \%o, map { $curve{$_} } @order);
}

# Cells of the heat map of a row: [length's place, bin's lower and upper depth, percent found, trials].
sub depth_cells {
    my ($lines, $lengths) = @_;
    my (%n, %good, @cells, %trials);
    $trials{ $_->{ctx} }{ $_->{trial} } = 1 for @$lines;
    my $bins = min(DEPTHS, max(map { scalar keys %$_ } values %trials));
    for my $r (@$lines) {
        my $depth = field($r, 'depth', 'number', $r->{where});
        $depth >= 0 && $depth <= 100 or fail("$r->{where}: 'depth' is $depth, expected 0 to 100");
        my $bin = int(max(0, $depth * $bins - 1e-9) / 100); # 10 % belongs to 0 .. 10
        $n{ $r->{ctx} }{$bin}++;
        $good{ $r->{ctx} }{$bin} += exists $r->{correct} ? ($r->{correct} ? 1 : 0) : $r->{score};
    }
    for my $i (0 .. $#$lengths) {
        my $c = $lengths->[$i];
        push @cells, [$i, 100 * $_ / $bins, 100 * ($_ + 1) / $bins, 100 * $good{$c}{$_} / $n{$c}{$_}, $n{$c}{$_}]
            for sort { $a <=> $b } keys %{ $n{$c} // {} };
    }
    return \@cells;
}

# Light for found, dark for missed, as in cividis: grey in print keeps the order.
my $palette = "set palette defined (0 '#00224e', 0.25 '#434e6c', 0.5 '#7d7c78', 0.75 '#bcae6c', 1 '#fee838')\n";

# Terminals place titles and axis labels differently: here all have their place in pixels, from the upper left.
sub text_at {
    my ($g, $text, $x, $y) = @_;
    return sprintf "set label %s at screen %.4f,%.4f center\n", $text, $x / $g->{width}, 1 - $y / $g->{height};
}

# One panel, its corners in pixels of the picture, which is `width` by `height`.
sub panel {
    my ($png, $g, $i, $row, $lengths) = @_;
    my ($x, $y) = ($i % $g->{across}, int($i / $g->{across}));
    my $lowest = $i + $g->{across} >= $g->{panels};
    my %margin = (
        l => ($g->{left} + $x * $g->{panel_w}) / $g->{width},
        r => ($g->{left} + ($x + 1) * $g->{panel_w} - 16) / $g->{width},
        t => 1 - ($g->{top} + $y * $g->{panel_h} + 26) / $g->{height},
        b => 1 - ($g->{top} + ($y + 1) * $g->{panel_h} - 4) / $g->{height},
    );
    my $s = join '', map { sprintf "set %smargin at screen %.4f\n", $_, $margin{$_} } sort keys %margin;
    my @ticks = map { quoted($lowest ? length_label($lengths->[$_]) : '') . " $_" } 0 .. $#$lengths;
    $s .= 'set xtics (' . join(', ', @ticks) . ") offset 0,0.2\n";
    $s .= $x ? "set ytics format '' 0,25,100\n" : "set ytics format '%g' 0,25,100\n";
    my $title_y = $g->{top} + $y * $g->{panel_h} + 15;
    $s .= text_at($g, quoted($row->{name}), $g->{left} + ($x + 0.5) * $g->{panel_w} - 8, $title_y);
    $s .= text_at($g, "'Depth (%)' rotate", 12, $g->{top} + ($y + 0.5) * $g->{panel_h} + 11) unless $x;
    $s .= "\$p$i << EOD\n";
    for my $c (@{ $row->{cells} }) {
        $s .= join(' ', $c->[0], ($c->[1] + $c->[2]) / 2, $c->[0] - 0.5, $c->[0] + 0.5, @$c[1 .. 3]) . "\n";
    }
    my $font = $png ? 8 : 11;
    return $s . "EOD\nplot \$p$i using 1:2:3:4:5:6:7 with boxxyerror fc palette, \$p$i using 1:2:"
        . "(sprintf('%.0f',\$7)):(\$7 < 55 ? 0xffffff : 0) with labels tc rgb variable font ',$font'\nunset label\n";
}

sub plot_passkey {
    my ($png, $command, @files) = @_;
    my $t = collect_scores($command, @files);
    my @lengths = map { size_of($_) } @{ $t->{columns} };
    my @rows = @{ $t->{rows} };
    my %g = (panels => scalar @rows, panel_w => max(150, 52 * @lengths), panel_h => 205, left => 66, top => 8);
    my ($right, $bottom) = (92, 52);
    $g{across} = @rows <= 4 ? @rows : int(sqrt(@rows - 1)) + 1;
    my $down = int((@rows + $g{across} - 1) / $g{across});
    $g{width} = $g{left} + $g{across} * $g{panel_w} + $right;
    $g{height} = $g{top} + $down * $g{panel_h} + $bottom;
    my $s = terminal($png, $g{width}, $g{height}) . $palette . "set cbrange [0:100]\nset xrange [-0.5:"
        . ($#lengths + 0.5) . "]\nset yrange [100:0]\nunset key\nunset colorbox\nset border 15 lw 1\n"
        . "set tics scale 0.5 nomirror\nset style fill solid noborder\nset multiplot\n";
    my $middle = $g{left} + $g{across} * $g{panel_w} / 2 - 8;
    my $once = text_at(\%g, "'Context length (tokens)'", $middle, $g{height} - 14);
    $once .= text_at(\%g, "'Found (%)' rotate", $g{width} - 12, ($g{top} + 26 + $g{height} - $bottom) / 2);
    $once .= sprintf "set colorbox user origin %.4f,%.4f size %.4f,%.4f\n", 1 - ($right - 8) / $g{width},
        $bottom / $g{height}, 13 / $g{width}, 1 - ($g{top} + 26 + $bottom) / $g{height};
    $once .= "set cbtics 0,25,100\n";
    for my $i (0 .. $#rows) {
        $rows[$i]{cells} = depth_cells($t->{cost}{ $rows[$i]{name} }, \@lengths);
        $s .= $once if $i == $#rows; # with the last panel: what all share
        $s .= panel($png, \%g, $i, $rows[$i], \@lengths);
    }
    return "${s}unset multiplot\n";
}

%plots = (
    perplexity => [\&plot_perplexity, 'eval pg19'],
    score      => [\&plot_score, 'eval longbench', 'eval longbench2', 'eval infinitebench', 'eval scbench',
        'eval mrcr', 'passkey', 'eval ruler', 'eval niah'],
    recall     => [\&plot_recall, 'eval recall'],
    accept     => [\&plot_accept, 'eval accept'],
    drift      => [\&plot_drift, 'eval drift'],
    passkey    => [\&plot_passkey, 'passkey', 'eval niah'],
    speed      => [\&plot_speed, 'bench'],
    drafts     => [\&plot_drafts, 'bench'],
);

sub have_gnuplot { grep { -x "$_/gnuplot" } split /:/, $ENV{PATH} // '' }

# gnuplot's output for a script.
sub draw {
    my ($script) = @_;
    have_gnuplot() or fail('pictures need gnuplot (Debian: apt install gnuplot-nox), tables do not');
    my $dir = File::Temp->newdir;
    my ($in, $err) = ("$dir/in", "$dir/err");
    open my $f, '>', $in or fail("$in: $!");
    print $f encode_utf8($script);
    close $f or fail("$in: $!");
    open my $p, '-|', "gnuplot '$in' 2>'$err'" or fail("gnuplot: $!");
    binmode $p;
    my $out = do { local $/; <$p> };
    close $p;
    my ($why) = grep { /\S/ && !/^\s*\^?\s*$/ } $? ? split(/\n/, slurp($err)) : ();
    fail("gnuplot failed: " . ($why // "status $?")) if $? || !length($out // '');
    return $out;
}

1;
