# Copies by rsync, into, out of and within.
# needs: rsync
set -euo pipefail
source "$CASES/../lib.sh"
mkdir -p src/a/b src/c; seq 1 50000 > src/a/numbers; for i in $(seq 40); do echo $i > src/c/f$i; done; echo x > src/a/b/x
chmod 600 src/a/b/x; ln -s ../a/numbers src/c/soft; ln src/a/numbers src/c/hard; find src -exec touch -h -d '2011-01-02 03:04:05' {} +
rsync -aH src/ dst/; diff -r --no-dereference src dst && echo same; [ dst/c/hard -ef dst/a/numbers ] && echo linked
rsync -aHi src/ dst/ | wc -l
echo changed >> src/a/numbers; rm src/c/f7; echo new > src/c/new
rsync -aHi --delete src/ dst/ | sed 's/  */ /' | sort; diff -r --no-dereference src dst && echo same
rsync -a --no-whole-file src/a/numbers dst/a/numbers; rsync -a --inplace --no-whole-file src/a/numbers dst/a/numbers; cmp src/a/numbers dst/a/numbers
rsync -aH src/ "$OUTER/out/"; diff -r --no-dereference src "$OUTER/out" && echo out; echo back > "$OUTER/out/c/back"; rsync -aHc "$OUTER/out/" in/; cat in/c/back
rsync -a --exclude='f1*' --include='*/' src/ filtered/; find filtered | sort; rsync -an --delete src/ in/ | wc -l
rsync -aS --append src/a/numbers partial; rsync -a --remove-source-files src/c/f2 taken/; [ ! -e src/c/f2 ] && cat taken/f2; rsync -abI --suffix=.old src/c/f3 taken/f2; ls taken
rsync -a --link-dest="$PWD/src" src/ snapshot/; [ snapshot/c/f9 -ef src/c/f9 ] && echo hard linked; rm -rf snapshot
rsync -r missing nowhere > /dev/null 2>&1 || echo "code $?"; rsync -aHO --checksum --out-format=%n src/ dst/ | sort
find src dst -name '.*' | sort
