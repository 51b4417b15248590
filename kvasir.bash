# SPDX-License-Identifier: MIT
# Completion for bash: the program prints the possible words.
_kvasir() {
    local IFS=$'\n'
    mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}")
}
complete -o default -F _kvasir kvasir ./run
