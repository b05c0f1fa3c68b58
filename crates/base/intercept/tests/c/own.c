/* System calls by this file's own instructions: they are seen (/magic is /etc/hostname), and change no register but rax, rcx
 * and r11: the vector registers in their whole width neither. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) { printf("%s\n", what); exit(1); }

static inline long raw3(long nr, long a, long b, long c) {
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "0"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
}

static unsigned char in[2048 + 64], out[2048 + 64];
#define EACH16(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
#define HIGH16(f) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24) f(25) f(26) f(27) f(28) f(29) f(30) f(31)
#define MASKS(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define LOAD_Y(n) "vmovdqu 64*" #n "(%[in]), %%ymm" #n "\n"
#define KEEP_Y(n) "vmovdqu %%ymm" #n ", 64*" #n "(%[out])\n"
#define LOAD_Z(n) "vmovdqu64 64*" #n "(%[in]), %%zmm" #n "\n"
#define KEEP_Z(n) "vmovdqu64 %%zmm" #n ", 64*" #n "(%[out])\n"
#define LOAD_K(n) "kmovw 2048+2*" #n "(%[in]), %%k" #n "\n"
#define KEEP_K(n) "kmovw %%k" #n ", 2048+2*" #n "(%[out])\n"
#define REGISTERS [in] "r"(in), [out] "r"(out)
#define CHANGES "rcx", "r11", "r12", "memory"
#define XMMS "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

__attribute__((noinline, target("avx"))) static long wide_256(long nr, long a, long b, long c) {
  long r;
  __asm__ volatile(EACH16(LOAD_Y) "syscall\n" EACH16(KEEP_Y) : "=a"(r) : "0"(nr), "D"(a), "S"(b), "d"(c), REGISTERS : CHANGES, XMMS);
  return r;
}
__attribute__((noinline, target("avx512f"))) static long wide_512(long nr, long a, long b, long c) {
  long r;
  __asm__ volatile(EACH16(LOAD_Z) HIGH16(LOAD_Z) MASKS(LOAD_K) "syscall\n" EACH16(KEEP_Z) HIGH16(KEEP_Z) MASKS(KEEP_K)
                   : "=a"(r) : "0"(nr), "D"(a), "S"(b), "d"(c), REGISTERS : CHANGES, XMMS);
  return r;
}

static void compare(const char *what, int count, int width) {
  for (int n = 0; n < count; n++)
    if (memcmp(in + 64 * n, out + 64 * n, width)) printf("%s%d\n", what, n), exit(1);
  memset(out, 0, sizeof out);
}

/* All general registers but three, and the red zone. */
__attribute__((noinline)) static int general(void) {
  int bad;
  __asm__ volatile(
    "mov $0x1111, %%rbx\n mov $0x2222, %%r8\n mov $0x3333, %%r9\n mov $0x4444, %%r10\n mov $0x5555, %%r12\n mov $0x6666, %%r13\n"
    "mov $0x7777, %%r14\n mov $0x8888, %%r15\n mov $-1, %%rdi\n mov $0x9999, %%rsi\n mov $0xaaaa, %%rdx\n"
    "movq $0xbbbb, -8(%%rsp)\n movq $0xcccc, -128(%%rsp)\n"
    "mov $3, %%eax\n syscall\n"
    "xor $-9, %%rax\n sub $0x1111, %%rbx\n or %%rbx, %%rax\n sub $0x2222, %%r8\n or %%r8, %%rax\n sub $0x3333, %%r9\n or %%r9, %%rax\n"
    "sub $0x4444, %%r10\n or %%r10, %%rax\n sub $0x5555, %%r12\n or %%r12, %%rax\n sub $0x6666, %%r13\n or %%r13, %%rax\n"
    "sub $0x7777, %%r14\n or %%r14, %%rax\n sub $0x8888, %%r15\n or %%r15, %%rax\n inc %%rdi\n or %%rdi, %%rax\n"
    "sub $0x9999, %%rsi\n or %%rsi, %%rax\n sub $0xaaaa, %%rdx\n or %%rdx, %%rax\n"
    "subq $0xbbbb, -8(%%rsp)\n or -8(%%rsp), %%rax\n subq $0xcccc, -128(%%rsp)\n or -128(%%rsp), %%rax\n"
    "test %%rax, %%rax\n setne %%al\n movzbl %%al, %%eax\n"
    : "=a"(bad) : : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc");
  return bad;
}

int main(void) {
  char seen[256] = "", want[256] = "";
  long fd = raw3(SYS_open, (long)"/magic", O_RDONLY, 0);
  if (fd < 0) fail("not seen");
  long n = raw3(SYS_read, fd, (long)seen, 255);
  raw3(SYS_close, fd, 0, 0);
  int plain = open("/etc/hostname", O_RDONLY);
  if (read(plain, want, 255) != n || strcmp(seen, want)) fail("another file");
  if (general()) fail("a general register");
  for (size_t i = 0; i < sizeof in; i++) in[i] = i * 7 + i / 64 + 1;
  for (int round = 0; round < 100; round++) {
    if (__builtin_cpu_supports("avx")) {
      if (wide_256(SYS_getppid, 0, 0, 0) != getppid()) fail("getppid");
      compare("ymm", 16, 32);
    }
    if (__builtin_cpu_supports("avx512f")) {
      if (wide_512(SYS_fcntl, 1, F_GETFD, 0)) fail("fcntl");
      if (memcmp(in + 2050, out + 2050, 14)) fail("mask");
      compare("zmm", 32, 64);
    }
  }
  int status = 0;
  long pid = raw3(SYS_fork, 0, 0, 0);
  if (pid == 0) raw3(SYS_exit_group, 5, 0, 0);
  if (waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 5) fail("fork");
  puts("ok");
  return 0;
}
