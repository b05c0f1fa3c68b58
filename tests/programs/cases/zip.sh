# zip and unzip.
# needs: zip unzip python3
set -euo pipefail
source "$CASES/../lib.sh"
mkdir -p src/a/b src/empty; seq 1 50000 > src/a/numbers; echo small > src/a/b/small; ln -s a/numbers src/link
head -c 300000 /dev/zero > src/zeros; printf '#!/bin/sh\necho run\n' > src/tool; chmod 750 src/tool; chmod 400 src/a/b/small
find src -exec touch -h -d '2009-08-07 06:05:04' {} +
section pack
zip -qr plain.zip src; zip -qry links.zip src; (cd src; zip -qr9 - .) > streamed.zip; zip -q -0 -r stored.zip src -x '*/zeros'
for f in plain links streamed stored; do unzip -tq $f.zip; unzip -Z1 $f.zip | sort | sha256sum; done
unzip -Z plain.zip | awk '/^-/{print $1, $4, $NF}' | sort
section unpack
mkdir x y; unzip -q links.zip -d x; diff -r --no-dereference src x/src && echo same; plain_stat x/src/tool x/src/a/b/small x/src/link
find x/* ! -type l -exec stat -c '%n %Y' {} + | sort; x/src/tool
unzip -qj plain.zip 'src/a/*' -d y; find y | sort; unzip -p plain.zip src/a/numbers | cmp - src/a/numbers && echo piped
section change
echo changed >> src/zeros; echo new > src/new; touch -d '2019-08-07' src/zeros src/new
zip -qru plain.zip src; unzip -p plain.zip src/zeros | tail -c 8; zip -qd plain.zip src/tool; unzip -Z1 plain.zip | sort
zip -qrm moved.zip src/a/b; ls src/a; echo n | unzip -q moved.zip > /dev/null 2>&1 || true; cat src/a/b/small
echo "other" > x/src/new; unzip -qo plain.zip -d x; cat x/src/new; zip -qs 100k -r split.zip src/a/numbers src/zeros; ls split.*
zip -qs 0 split.zip --out joined.zip; unzip -tq joined.zip; fails unzip -q missing.zip | tail -n 1; head -c 1000 plain.zip > broken.zip
unzip -tq broken.zip > /dev/null 2>&1 || echo "code $?"
python3 -c 'import zipfile; z = zipfile.ZipFile("links.zip"); print(z.testzip(), len(z.namelist()))
z = zipfile.ZipFile("py.zip", "w", zipfile.ZIP_DEFLATED); z.write("src/zeros"); z.writestr("text", "text"); z.close()
z = zipfile.ZipFile("py.zip", "a"); z.writestr("more", "more"); z.close(); print(zipfile.ZipFile("py.zip").testzip())'; unzip -tq py.zip
# Archives hold times of access and of now.
rm ./*.zip split.z01
