#!/usr/bin/env bash
# Trains a small Llama-type model on real documents of very different lengths, with 4 ranks in this process,
# then evaluates held-out documents by position. `make demo` runs it after set-up and build.
set -euo pipefail
cd "$(dirname "$0")/.."
longspan=build/release/longspan
documents=demo/documents

if [[ -f $documents/COMPLETE ]]; then
  echo "demo: documents are in place ($documents)"
else
  # perl-doc installs Perl's manual as plain pod pages; the folder name carries the Perl version.
  mapfile -t pages < <(dpkg -L perl-doc | grep '\.pod$' | sort)
  ((${#pages[@]} > 0)) || { echo "demo: perl-doc has no pages; run: scripts/setup.sh demo" >&2; exit 2; }
  rm -rf "$documents" && mkdir -p "$documents/train" "$documents/held_out"
  index=0
  for page in "${pages[@]}"; do
    # Every tenth page, by name, is held out.
    split=train; ((index++ % 10 == 9)) && split=held_out
    cp "$page" "$documents/$split/"
  done
  touch "$documents/COMPLETE"
  echo "demo: ${#pages[@]} pages of Perl's manual, every tenth held out ($documents)"
fi
$longspan data inspect "$documents/train/*.pod" --micro-batch-tokens 32768

if [[ -d demo/run ]]; then
  echo "demo: demo/run is there: training goes on from its latest checkpoint, or has nothing left to do"
fi
$longspan train configs/demo.toml
$longspan eval configs/demo.toml --by-position 8

cat <<'TXT'

What this was: a few minutes of training on documents of up to 32,768 tokens. Pages that are longer were left out, most of all
tokens, as "left out" says above: a micro-batch holds whole documents, and one of 774,718 tokens takes longer than a demo may
(batch.micro_batch_tokens and data.overlong decide). It shows the balance, not a good model: that takes more than 16 steps.

Next: give the same documents to 2 ranks and 4 chunks. The data order stays, the loss follows within rounding:
  build/release/longspan train configs/demo.toml --layout.ranks=2 --layout.chunks=4 --output.folder=demo/run-2
Or your own text (micro_batch_tokens: at least your longest document):
  build/release/longspan train configs/demo.toml --data.train='["my/*.txt"]' --data.eval='["other/*.txt"]' \
      --batch.micro_batch_tokens=65536 --output.folder=runs/mine
To see the demo again from the start: rm -r demo/run
TXT
