# SPDX-License-Identifier: MIT
# shellcheck shell=sh
# Files of results, and runs that are killed. After lib.sh.
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; remove_tmp' EXIT

# Results without what differs from run to run.
timeless() { sed 's/"seconds":[^,]*,//; s/"together":[^,}]*//; s/,"started":{[^}]*}//' "$1"; }
same_results() { timeless "$1" >"$tmp/a" && timeless "$2" >"$tmp/b" && cmp "$tmp/a" "$tmp/b"; }
same_set() { timeless "$1" | sort >"$tmp/a" && timeless "$2" | sort >"$tmp/b" && cmp "$tmp/a" "$tmp/b"; }
# same_answers FILE FILE: the same but for the head, of runs whose configurations differ.
same_answers() { timeless "$1" | sed 1d >"$tmp/a" && timeless "$2" | sed 1d >"$tmp/b" && [ -s "$tmp/a" ] && cmp "$tmp/a" "$tmp/b"; }
has_lines() { [ -f "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; }
ended() { ! kill -0 "$pid" 2>/dev/null; }

# killed FILE "N..." ARGS...: the program with these arguments and -o FILE, again and again, killed as soon as the file
# has N lines, wherever the program is then.
killed() {
    file=$1 moments=$2
    shift 2
    for lines in $moments; do
        "$RUN" "$@" -o "$file" >/dev/null 2>&1 </dev/null &
        pid=$!
        tries=0
        until has_lines "$file" "$lines" || ended || [ $tries -gt 6000 ]; do
            tries=$((tries + 1))
            sleep 0.01
        done
        kill -9 "$pid" 2>/dev/null
        wait "$pid" 2>/dev/null
        pid=
    done
}
