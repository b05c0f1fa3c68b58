# A repository's life: commits, branches, merges, clones, fsck, gc.
# needs: git
# timeout: 90
# ignore: *.git/index */.git/index *.git/objects/pack *.git/objects/info
set -euo pipefail
source "$CASES/../lib.sh"
export GIT_AUTHOR_NAME=A GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=C GIT_COMMITTER_EMAIL=c@example.org
tick=1100000000
commit() { tick=$((tick + 60)); GIT_AUTHOR_DATE="$tick +0000" GIT_COMMITTER_DATE="$tick +0000" git commit -q "$@"; }
export GIT_AUTHOR_DATE="1100000000 +0000" GIT_COMMITTER_DATE="1100000000 +0000"

section begin
git init -q -b main repo; cd repo
git config gc.auto 0; git config pack.threads 1; git config core.fsync none; git config maintenance.auto false
mkdir -p src doc; for i in $(seq 60); do seq $i $((i + 200)) > src/file$i; done
echo readme > README; echo '*.tmp' > .gitignore; printf '#!/bin/sh\n' > src/tool; chmod +x src/tool; ln -s README doc/link
git add .; git status --short | wc -l; commit -m 'first'; git status --short; git rev-parse HEAD
touch ignored.tmp; git status --porcelain; git ls-files -s | sha256sum; git cat-file -p HEAD
git log --stat --format='%H %an %ad %s' | tail -n 3

section change
echo more >> README; sed -i 5d src/file3; rm src/file60; echo new > src/added; chmod -x src/tool
git status --short; git diff | sha256sum; git diff --stat; git add -A; git diff --cached --summary; commit -m 'second'
git mv src/file1 src/renamed; commit -m 'rename'; git log --oneline --follow src/renamed; git log --stat --oneline -n 2
git blame -s README; git grep -c '^77$' | sed -n 1,5p; git show --stat --format=%s HEAD~1
touch src/file5; git status --short; git diff --quiet && echo clean

section branches
git checkout -q -b topic HEAD~1; echo topic > doc/topic; git add doc; commit -m 'topic'; ls doc; git branch -v
git checkout -q main; ls doc; git merge -q --no-edit topic; git log --graph --oneline; git diff --name-status HEAD~1
git checkout -q -b clash HEAD~1; echo theirs > README; commit -am 'theirs'
git checkout -q main; echo ours > README; commit -am 'ours'
git merge clash > /dev/null 2>&1 || git status --short; cat README; git merge --abort; git status --short; cat README
git merge -q -X theirs --no-edit clash; cat README
git checkout -q topic; GIT_COMMITTER_DATE="1200000000 +0000" git rebase -q main; git log --oneline -n 1; git checkout -q main
git cherry-pick topic > /dev/null 2>&1 || git cherry-pick --abort 2> /dev/null || true
git branch -d topic > /dev/null; git tag light; git tag -a heavy -m heavy; git describe; git tag -l

section undo
echo wip > README; echo untracked > u; git stash -q -u; cat README; ls u 2>&1 || true; git stash list; git stash pop -q; cat README u
git checkout -q -- README; cat README; git clean -fdxq; git status --short
git rm -q src/file9; rm -rf doc; git status --short; git reset -q --hard HEAD; git status --short; ls doc
git reset -q --hard HEAD~2; git rev-parse HEAD; git reset -q --hard 'HEAD@{1}'; git rev-parse HEAD; git reflog | wc -l
git worktree add -q ../tree heavy; git -C ../tree status --short; git -C ../tree log --oneline -n 1; git worktree remove ../tree
git archive --format=tar HEAD | tar tf - | wc -l; git bundle create -q ../all.bundle --all; git bundle verify -q ../all.bundle > /dev/null 2>&1 && echo bundle
git format-patch -q -o ../patches HEAD~2; ls ../patches

section clones
cd ..; git clone -q repo clone; git clone -q --bare repo bare.git; git clone -q --no-local repo copied; git clone -q all.bundle unbundled -b main
git -C clone log --oneline | wc -l; git -C unbundled rev-parse HEAD; diff -r --no-dereference --exclude=.git repo clone && echo same
cd clone; git config gc.auto 0; echo pushed > pushed; git add .; commit -m pushed; git push -q ../bare.git main; git -C ../bare.git log --oneline -n 1
cd ../repo; git pull -q --ff-only ../bare.git main; cat pushed; git fetch -q ../clone; git rev-parse FETCH_HEAD
git fsck --full --strict 2>&1 | grep -v dangling || true; git repack -adq; git prune-packed; git fsck --full 2>&1 | grep -v dangling || true
git gc -q --prune=now; git count-objects -v | grep -E '^(count|garbage|packs)'; git log --oneline | wc -l; git status --short; git verify-pack .git/objects/pack/*.idx && echo pack
git -C ../copied fsck --full; git rev-list --objects HEAD | sha256sum
cd ..; rm -f all.bundle; rm -rf copied unbundled
