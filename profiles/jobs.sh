# What submit and status of several profiles share; they source it. Jobs write to .snakemake/SCHEDULER/.
# shellcheck shell=bash

# The command of a job that starts in a fresh environment: SCRIPT, with what of ours it has to know.
command_of() {
    local name
    printf env
    for name in $(compgen -e RINGSIDE_ || true); do
        printf ' %s=%q' "$name" "${!name}"
    done
    printf ' %q' "$1"
}

# Whether what is said of a job was so often said in a row that it has to be believed: believed FILE WORDS TIMES.
believed() {
    mkdir -p "$(dirname "$1")"
    echo "$2" >> "$1"
    (($(wc -l < "$1") >= $3))
}
