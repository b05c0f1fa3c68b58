/* Functions of libc's names, as sanitizers have them. What a file system below would call is none of their business. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static __thread int inside;
static void called(const char *name, void *by) {
  Dl_info info;
  if (inside++ == 0 && dladdr(by, &info) && info.dli_fname && strstr(info.dli_fname, "/libforebay_")) dprintf(2, "%s is called by %s\n", name, info.dli_fname), _exit(9);
  inside--;
}
#define WRAP(type, name, given, passed) type name given { static type (*real) given; if (!real) real = dlsym(RTLD_NEXT, #name); \
  called(#name, __builtin_return_address(0)); return real passed; }
WRAP(void *, memchr, (const void *a, int c, size_t n), (a, c, n))
WRAP(int, memcmp, (const void *a, const void *b, size_t n), (a, b, n))
WRAP(int, bcmp, (const void *a, const void *b, size_t n), (a, b, n))
WRAP(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n))
WRAP(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))
WRAP(int, close, (int fd), (fd))
WRAP(int, sched_yield, (void), ())
WRAP(int, msync, (void *at, size_t n, int how), (at, n, how))
WRAP(int, munmap, (void *at, size_t n), (at, n))
WRAP(void *, mmap, (void *at, size_t n, int prot, int flags, int fd, off_t o), (at, n, prot, flags, fd, o))
WRAP(void *, mmap64, (void *at, size_t n, int prot, int flags, int fd, off_t o), (at, n, prot, flags, fd, o))
/* dlsym uses these itself. */
#define OWN(name, given, body) void *name given { called(#name, __builtin_return_address(0)); body }
OWN(memcpy, (void *to, const void *from, size_t n), void *r = to; __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) :: "memory"); return r;)
OWN(memset, (void *to, int c, size_t n), void *r = to; __asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(c) : "memory"); return r;)
size_t strlen(const char *s) { called("strlen", __builtin_return_address(0)); const char *e = s; while (*e) e++; return e - s; }
