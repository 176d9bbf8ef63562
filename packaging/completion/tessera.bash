# bash completion for tessera, tessera-lab and tesserad. Commands and flags are those that the program's own help lists.
# shellcheck shell=bash

# Commands of one word, or the second words of a command of two: _tessera_commands tessera [first word]
_tessera_commands() {
    "$1" help 2>/dev/null | awk -v first="${2:-}" '
        /^Commands:/ {on = 1; next}
        on && !/^  / {exit}
        on && first == "" {print $1}
        on && first != "" && $1 == first && $2 ~ /^[a-z-]+$/ && substr($0, 3, 15) ~ (first " " $2) {print $2}'
}

_tessera_flags() {
    local program=$1
    shift
    "$program" help "$@" 2>/dev/null | grep -oE -- '(^|[ [(])--[a-z0-9][a-z0-9-]*=?' | tr -d ' [(' | sort -u
}

_tessera() {
    local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} words=() word i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        [[ $word == -* || $word == '=' || ${COMP_WORDS[i - 1]} == '=' ]] || words+=("$word")
    done
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_tessera_flags "$program" "${words[@]:0:2}")" -- "$current")
        [[ ${COMPREPLY[*]:-} != *= ]] || compopt -o nospace 2>/dev/null
    elif [ ${#words[@]} -eq 0 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_tessera_commands "$program")" -- "$current")
    elif [ ${#words[@]} -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_tessera_commands "$program" "${words[0]}")" -- "$current")
    fi
    # Everything else is a file.
    [ ${#COMPREPLY[@]} -gt 0 ] || compopt -o default 2>/dev/null || true
}
complete -F _tessera tessera tessera-lab

# The server has flags and no commands.
_tesserad() {
    local current=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" --help 2>/dev/null | grep -oE -- '(^|[ [(])--[a-z0-9][a-z0-9-]*' | tr -d ' [(' | sort -u)" -- "$current")
    fi
    [ ${#COMPREPLY[@]} -gt 0 ] || compopt -o default 2>/dev/null || true
}
complete -F _tesserad tesserad
