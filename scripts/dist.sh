#!/usr/bin/env bash
# A folder that runs wherever it is copied to (Linux x86-64, glibc 2.28 or newer): the tool, the program it trains with, libtorch, and
# the tables that ship. `make dist` builds both programs first. Usage: scripts/dist.sh PROGRAMS FOLDER
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

programs=$1
folder=$2
libtorch=${LIBTORCH:-third_party/libtorch/torch}

# Beside its place and then renamed, so that there is a whole folder or none.
new=$folder.tmp
rm -rf "$new"
mkdir -p "$new/lib/torch/lib" "$new/lib/nvidia/cu13/lib" "$new/licenses" "$new/tables"
install -s "$programs/kvtide" "$programs/kvtide-train" "$new/"

# In the layout of the wheels: libtorch_cpu.so finds the two libraries of CUDA that it will not load without by a relative path.
cp -L "$libtorch"/lib/{libc10.so,libgomp.so.1,libtorch_cpu.so} "$new/lib/torch/lib/"
for library in "$libtorch"/../nvidia/cu13/lib/{libcudart,libcupti}.so.*; do
  if [ -e "$library" ]; then cp -L "$library" "$new/lib/nvidia/cu13/lib/"; fi
done

cp LICENSE-APACHE LICENSE-MIT "$new/licenses/"
for licenses in "$libtorch"/../*.dist-info/licenses; do
  if [ -d "$licenses" ]; then
    name=$(basename "$(dirname "$licenses")" .dist-info)
    mkdir "$new/licenses/$name"
    cp "$licenses"/* "$new/licenses/$name/"
  fi
done
for table in checkpoints/*/policy.kvt; do
  cp "$table" "$new/tables/$(basename "$(dirname "$table")").kvt"
done
"$programs/kvtide" man --out "$new/man/man1" --quiet
mkdir -p "$new/completions"
"$programs/kvtide" completions bash > "$new/completions/kvtide.bash"
"$programs/kvtide" completions zsh > "$new/completions/_kvtide"
"$programs/kvtide" completions fish > "$new/completions/kvtide.fish"
cat > "$new/README.txt" <<'TEXT'
kvtide          the tool; it needs nothing else here but, to train by PPO, the two below
kvtide-train    the same with libtorch, which kvtide hands over to when training starts
lib/            libtorch (CPU) for kvtide-train
tables/         decision tables that ship with kvtide: kvtide inspect tables/reasoning.kvt
man/            pages of the manual: man -M man kvtide
completions/    for bash, zsh and fish: source completions/kvtide.bash
licenses/       of kvtide and of what is in lib/

The folder can be copied anywhere. Start with: ./kvtide tune
TEXT
rm -rf "$folder"
mv "$new" "$folder"
echo "dist: $folder, $(du -sh "$folder" | cut -f1)"
