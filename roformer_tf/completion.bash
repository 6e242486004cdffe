# Completion of roformer-tf in bash: commands, their flags, and names of files as values.
# `roformer-tf --completion` prints this file. Flags come from --help-all, once in each shell.
declare -A _roformer_tf_words

_roformer_tf() {
  local current="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" program="${COMP_WORDS[0]}"
  COMPREPLY=()
  if [[ $COMP_CWORD == 1 ]]; then command=""; fi
  if [[ $command == checkpoints && $COMP_CWORD -gt 2 ]]; then command+=" ${COMP_WORDS[2]}"; fi
  if [[ ! -v _roformer_tf_words["-$command"] ]]; then
    # Lines of flags begin with "  --flag", "  [--flag]"; those of commands with "  command".
    # `evaluate` has other flags with --corpus.
    local variant=""; if [[ $command == evaluate ]]; then variant="--corpus"; fi
    _roformer_tf_words["-$command"]=$(
      for flag in "" $variant; do "$program" $command $flag --help-all 2>/dev/null; done |
      sed -nE "s/^  \[?(--[a-z0-9-]+).*/\1/p; s/^  ${command:+$command }([a-z][a-z-]+) .*/\1/p" | sort -u)
  fi
  local found="${_roformer_tf_words["-$command"]}"
  if [[ $found == --* && $current != -* ]]; then return; fi  # the value of a flag: a file
  COMPREPLY=($(compgen -W "$found" -- "$current"))
}
complete -o default -F _roformer_tf roformer-tf
