# fish completion for tessera, tessera-lab and tesserad. Commands and flags are those that the program's own help lists.

function __tessera_words
    for word in (commandline -opc)[2..-1]
        string match -q -- '-*' $word; or echo $word
    end
end

function __tessera_commands
    set -l program (commandline -opc)[1]
    set -l given (__tessera_words)
    switch (count $given)
        case 0
            $program help 2>/dev/null | awk '/^Commands:/ {on = 1; next} on && !/^  / {exit} on {print $1}' | sort -u
        case 1
            $program help 2>/dev/null | awk -v first=$given[1] '/^Commands:/ {on = 1; next} on && !/^  / {exit}
                on && $1 == first && $2 ~ /^[a-z-]+$/ && substr($0, 3, 15) ~ (first " " $2) {print $2}'
    end
end

function __tessera_flags
    set -l given (__tessera_words)
    set -l program (commandline -opc)[1]
    $program help $given[1..2] 2>/dev/null | string match -ra -- '--[a-z0-9][a-z0-9-]*=?' | sort -u
end

for program in tessera tessera-lab
    complete -c $program -a '(__tessera_commands)'
    complete -c $program -n 'string match -q -- "-*" (commandline -ct)' -a '(__tessera_flags)'
end

# The server has flags and no commands.
complete -c tesserad -n 'string match -q -- "-*" (commandline -ct)' -a '(tesserad --help 2>/dev/null | string match -ra -- "--[a-z0-9][a-z0-9-]*" | sort -u)'
