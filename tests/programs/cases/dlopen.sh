# A shared library compiled here, loaded by dlopen and by Python, replaced, loaded again.
# needs: gcc python3
set -euo pipefail
mkdir lib plugins
cat > lib/answer.c <<'C'
#include <stdio.h>
static int counter; int table[5000] = {1, 2, 3}; const char *text = "text of the library";
__attribute__((constructor)) static void begin(void) { printf("loaded %d\n", VERSION); fflush(stdout); }
int answer(int n) { return n * 42 + VERSION + table[2]; }
int count(void) { return ++counter; }
C
gcc -shared -fPIC -DVERSION=1 -o plugins/answer.so lib/answer.c
cat > main.c <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    void *h = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (!h) { puts("not loaded"); continue; }
    int (*answer)(int) = (int (*)(int))dlsym(h, "answer"); int (*count)(void) = (int (*)(void))dlsym(h, "count");
    count(); printf("%d %d %s\n", answer(1), count(), *(const char **)dlsym(h, "text"));
    Dl_info info; if (dladdr((void *)answer, &info)) printf("%s\n", info.dli_fname);
    if (dlclose(h)) puts(dlerror());
  }
  return 0;
}
C
gcc -o main main.c -ldl
./main ./plugins/answer.so "$PWD/plugins/answer.so" ./plugins/missing.so; (cd plugins; ../main ./answer.so)
ln -s plugins/answer.so link.so; ./main ./link.so; cp plugins/answer.so copy.so; ./main ./copy.so ./plugins/answer.so
gcc -shared -fPIC -DVERSION=2 -o plugins/new.so lib/answer.c; mv plugins/new.so plugins/answer.so; ./main ./plugins/answer.so
head -c 200 plugins/answer.so > broken.so; ./main ./broken.so; : > empty.so; ./main ./empty.so
# The library stays loaded when its file is removed.
python3 - <<'PY'
import ctypes, os
l = ctypes.CDLL(os.path.abspath("copy.so")); os.unlink("copy.so"); print(l.answer(2), l.count(), l.count())
m = ctypes.CDLL("./plugins/answer.so"); print(m.answer(2), m.count())
pid = os.fork()
if pid == 0: print(m.count(), l.count(), flush=True); os._exit(0)
os.waitpid(pid, 0); print(m.count())
PY
# An extension module of Python.
cat > ext.c <<'C'
#include <Python.h>
static PyObject *twice(PyObject *s, PyObject *a) { long n; return PyArg_ParseTuple(a, "l", &n) ? PyLong_FromLong(2 * n) : NULL; }
static PyMethodDef methods[] = {{"twice", twice, METH_VARARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "ext", 0, -1, methods};
PyMODINIT_FUNC PyInit_ext(void) { return PyModule_Create(&module); }
C
include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
if [ -e "$include/Python.h" ]; then gcc -shared -fPIC -I"$include" -o ext.so ext.c; python3 -c 'import ext; print(ext.twice(21))'; else echo 42; fi
rm -f -- *.so plugins/*.so main
