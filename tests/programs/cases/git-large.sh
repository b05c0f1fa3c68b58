# A repository with large and many files, worktrees used at once, rebase, gc with threads.
# needs: git python3
# timeout: 90
# ignore: *.git/index */.git/* *.git/objects/*
set -euo pipefail
source "$CASES/../lib.sh"
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=C GIT_COMMITTER_EMAIL=c@example.org
export GIT_AUTHOR_DATE="1100000000 +0000" GIT_COMMITTER_DATE="1100000000 +0000" GIT_SEQUENCE_EDITOR=: GIT_EDITOR=:
git init -q -b main repo; cd repo; git config gc.auto 0; git config core.bigFileThreshold 1m
python3 - <<'PY'
import os, random
r = random.Random(7)
for d in range(20):
    os.makedirs("src/%d" % d)
    for i in range(30):
        with open("src/%d/%d.txt" % (d, i), "w") as f: f.write("".join("%d\n" % r.randrange(1000) for _ in range(r.randrange(200))))
with open("large", "wb") as f: f.write(r.randbytes(3 << 20))
PY
git add -A; git commit -qm first; git rev-parse 'HEAD^{tree}'
for i in 1 2 3 4 5; do echo "main $i" >> log-main; git add log-main; git commit -qm "main $i"; done
section worktrees
for w in 1 2 3; do git worktree add -q -b side$w ../side$w HEAD~5; done; git worktree list | wc -l
for w in 1 2 3; do
  ( cd ../side$w; for i in 1 2 3 4; do echo "side $w $i" >> side$w.log; sed -i "s/7/$w/" "src/$w/$i.txt"; git add -A; git commit -qm "side $w $i"; done ) &
done
wait
for w in 1 2 3; do git -C ../side$w status --short; git -C ../side$w log --oneline | wc -l; done
section merge and rebase
git merge -q --no-edit side1; (cd ../side2; git rebase -q main); git merge -q --ff-only side2; git merge -q -s octopus --no-edit side3
(cd ../side3; git rebase -q -i --exec 'test -e side3.log' main~1 > /dev/null 2>&1 && git log --oneline -n 1 --format=%s)
git rev-parse 'HEAD^{tree}'; git log --format=%s | sort | sha256sum; git status --short
git reset -q --hard HEAD~1; git revert --no-edit HEAD > /dev/null; git log -n 1 --format=%s; git bisect start HEAD "$(git log --format=%H --grep='^main 1$')" > /dev/null
git bisect run sh -c '! grep -q "main 3" log-main' > bisected 2>&1 || true; grep -c 'first bad commit' bisected || cat bisected; git bisect reset > /dev/null 2>&1; rm bisected
section gc
git worktree remove ../side1; git worktree remove ../side2; rm -rf ../side3; git worktree prune; git worktree list | wc -l
git config pack.threads 2; git repack -adfq --window=5; git gc -q --aggressive --prune=now; git count-objects -v | grep -E '^(count|packs|garbage)'
git fsck --full --strict; git commit-graph write --reachable; git commit-graph verify; git multi-pack-index write > /dev/null 2>&1; git multi-pack-index verify > /dev/null && echo verified
section clones
git clone -q . ../clone; git clone -q --shared . ../shared; git clone -q --depth 1 "file://$PWD" ../shallow; git -C ../shallow log --oneline | wc -l
git -C ../shared fsck --full; git -C ../clone fsck --full; cmp large ../shallow/large && echo large
cd ../clone; git config pull.rebase true; echo c > c; git add c; git commit -qm clone; cd ../repo; echo r > r; git add r; git commit -qm repo
cd ../clone; git pull -q; git log --format=%s -n 2; git submodule -q add "$WORK/shared" sub > /dev/null 2>&1 || git -c protocol.file.allow=always submodule -q add "$WORK/shared" sub; git commit -qm sub; git submodule status | wc -l
cd ..; rm -rf shared shallow
