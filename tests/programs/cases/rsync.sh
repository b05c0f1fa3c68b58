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
# A second run copies nothing; what changed in a large file is written in place.
rm -rf src dst; mkdir src; for i in $(seq 50); do seq $i > src/f$i; done; head -c 3000000 /dev/zero | tr '\0' z > src/large
rsync -a --stats src/ dst/ | grep 'files transferred'; rsync -a --stats src/ dst/ | grep 'files transferred'; rsync -ac --stats src/ dst/ | grep 'files transferred'
ino=$(stat -c %i dst/large); printf middle | dd of=src/large bs=1 seek=1500000 conv=notrunc status=none; touch -d '2005-01-01' src/large; rm src/f9; touch src/f10 -d '2001-01-01'
rsync -a --inplace --no-whole-file --delete --stats src/ dst/ | grep -E 'files transferred|Literal' | tr -d ,; cmp src/large dst/large; [ "$(stat -c %i dst/large)" = "$ino" ] && echo in place; [ ! -e dst/f9 ] && echo deleted
rsync -a --delete --delete-after --partial-dir=.part src/ dst/; rsync -an --itemize-changes --delete src/ dst/ | wc -l; rsync -a --inplace --append-verify src/large dst/large; rm -r dst
