# Sourced by scripts that put something into a folder of the per-user cache.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tessera

# claim NAME [MARK]: prints the folder and ends the script if it is there, complete and marked so. Else the script fills
# $prefix.part, alone: other checkouts wait until it ends, and find what it has made.
claim() {
  prefix=$cache/$1 mark=${2:-}
  is_complete() { [ -f "$prefix/.complete" ] && [ "$(< "$prefix/.complete")" = "$mark" ]; }
  if ! is_complete; then
    mkdir -p "$cache"
    exec 9> "$prefix.lock"; flock 9
  fi
  if is_complete; then echo "$prefix"; exit 0; fi
  rm -rf "$prefix.part" "$prefix"
}

# Gives the folder its name, and prints that.
keep() {
  mv "$prefix.part" "$prefix"
  echo "$mark" > "$prefix/.complete"
  echo "$prefix"
}
