/* A program with a library that makes its system calls itself: linked, or loaded when it runs.
 *   raw linked DIRECTORY | raw LIBRARY DIRECTORY | raw own DIRECTORY: by the program's own instructions */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#ifdef LINKED
void work(const char *top);
#endif

int main(int argc, char **argv) {
  void (*f)(const char *) = 0;
#ifdef LINKED
  f = work;
#else
  for (int i = 0; i < 3; i++) { /* Again and again, mostly to the same place. */
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) { puts(dlerror()); return 1; }
    f = (void (*)(const char *))dlsym(library, "work");
    if (i < 2) dlclose(library);
  }
#endif
  if (argc != 3 || !f) return 2;
  f(argv[2]);
  return 0;
}
