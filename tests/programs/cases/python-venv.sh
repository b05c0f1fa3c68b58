# A virtual environment in which a local package is installed and run.
# needs: python3
# timeout: 120
# ignore: venv copies *.egg-info */__pycache__ tmp
set -euo pipefail
mkdir tmp; export TMPDIR=$PWD/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INDEX=1 PIP_CACHE_DIR=$PWD/tmp/cache PIP_ROOT_USER_ACTION=ignore
# A package that builds its own wheel: pip needs nothing from the network.
mkdir -p package/demo; cd package
cat > pyproject.toml <<'TOML'
[build-system]
requires = []
build-backend = "build"
backend-path = ["."]
TOML
cat > build.py <<'PY'
import base64, hashlib, zipfile, os
NAME = "demo-1.2-py3-none-any.whl"
def build_wheel(directory, config_settings=None, metadata_directory=None):
    files = {"demo/" + n: open("demo/" + n, "rb").read() for n in sorted(os.listdir("demo")) if n != "__pycache__"}
    files["demo-1.2.dist-info/METADATA"] = b"Metadata-Version: 2.1\nName: demo\nVersion: 1.2\n"
    files["demo-1.2.dist-info/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: demo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files["demo-1.2.dist-info/entry_points.txt"] = b"[console_scripts]\ndemo-tool = demo.main:main\n"
    digest = lambda b: base64.urlsafe_b64encode(hashlib.sha256(b).digest()).rstrip(b"=").decode()
    record = "".join("%s,sha256=%s,%d\n" % (n, digest(b), len(b)) for n, b in files.items()) + "demo-1.2.dist-info/RECORD,,\n"
    files["demo-1.2.dist-info/RECORD"] = record.encode()
    with zipfile.ZipFile(os.path.join(directory, NAME), "w") as z:
        for n, b in files.items(): z.writestr(n, b)
    return NAME
PY
echo 'VERSION = "1.2"' > demo/__init__.py; echo data > demo/data.txt
cat > demo/main.py <<'PY'
import importlib.metadata, importlib.resources, sys, demo
def main():
    text = importlib.resources.files("demo").joinpath("data.txt").read_text().strip()
    print(demo.VERSION, importlib.metadata.version("demo"), text, sys.prefix != sys.base_prefix, sys.argv[1:])
PY
cd ..
python3 -m venv venv
venv/bin/python -c 'import sys; print(sys.prefix, sys.executable, sys.prefix != sys.base_prefix)'
venv/bin/pip install -q ./package; venv/bin/pip list --format=freeze | grep demo; venv/bin/pip show -f demo | grep -c '^  '
venv/bin/demo-tool a b; (cd /; "$WORK/venv/bin/demo-tool" from elsewhere)
venv/bin/python -m demo.main; venv/bin/python -c 'import demo.main; demo.main.main(); print(demo.__file__)'
source venv/bin/activate; python -c 'import sys; print(sys.executable)'; demo-tool activated; pip uninstall -qy demo; deactivate
[ ! -e venv/bin/demo-tool ] && echo uninstalled; venv/bin/python -c 'import demo' 2>&1 | tail -n 1 || true
python3 -m venv --without-pip --copies copies; copies/bin/python -c 'import sys, json, sqlite3; print(sys.prefix, sys.executable)'
