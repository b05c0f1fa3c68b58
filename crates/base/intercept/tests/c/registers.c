/* What a call may change: rax, rcx, r11 and flags. libc's syscall() is a leaf that only shuffles registers, so what it
 * returns with is what its instruction returned with; the red zone below its frame too. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct regs { uint64_t in[16], out[16]; unsigned char xin[256], xout[256]; uint64_t red[14], redout[14]; };
extern void probe(struct regs *r, long skew);
__asm__(
    ".text\nprobe:\n push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15; sub $8,%rsp\n"
    " mov %rsp,%rbp\n sub %rsi,%rsp\n mov %rdi,%rbx\n"
    /* the red zone of the called function: rsp - 8 - 8*i */
    " xor %ecx,%ecx\n1: mov 768(%rbx,%rcx,8),%rax\n mov %rcx,%rdx\n neg %rdx\n mov %rax,-24(%rsp,%rdx,8)\n inc %ecx\n cmp $14,%ecx\n jb 1b\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movups 256+16*\\n(%rbx),%xmm\\n\n.endr\n"
    " mov (%rbx),%rdi; mov 8(%rbx),%rsi; mov 16(%rbx),%rdx; mov 24(%rbx),%rcx; mov 32(%rbx),%r8; mov 40(%rbx),%r9\n"
    " mov 48(%rbx),%r12; mov 56(%rbx),%r13; mov 64(%rbx),%r14; mov 72(%rbx),%r15\n"
    " call syscall@PLT\n"
    " mov %rax,128(%rbx); mov %rdi,136(%rbx); mov %rsi,144(%rbx); mov %rdx,152(%rbx); mov %r10,160(%rbx); mov %r8,168(%rbx)\n"
    " mov %r12,176(%rbx); mov %r13,184(%rbx); mov %r14,192(%rbx); mov %r15,200(%rbx)\n"
    ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n movups %xmm\\n,512+16*\\n(%rbx)\n.endr\n"
    " xor %ecx,%ecx\n1: mov %rcx,%rdx\n neg %rdx\n mov -24(%rsp,%rdx,8),%rax\n mov %rax,880(%rbx,%rcx,8)\n inc %ecx\n cmp $14,%ecx\n jb 1b\n"
    " mov %rbp,%rsp\n add $8,%rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp\n ret\n");

int main(void) {
    static long numbers[] = {SYS_getppid, SYS_close, SYS_read, SYS_fork, 100000};
    for (int i = 0; i < 500; i++) {
        struct regs r;
        unsigned char *b = (unsigned char *)&r;
        for (unsigned k = 0; k < sizeof r; k++) b[k] = (unsigned char)rand();
        r.in[0] = numbers[i % 5];
        r.in[1] = (uint64_t)-1; /* no descriptor */
        int pid = getpid();
        probe(&r, i % 4 * 8);
        if (getpid() != pid) _exit(0);
        uint64_t want[] = {r.in[1], r.in[2], r.in[3], r.in[4], r.in[5], r.in[6], r.in[7], r.in[8], r.in[9]};
        if (memcmp(want, r.out + 1, sizeof want) || memcmp(r.xin, r.xout, 256) || memcmp(r.red, r.redout, sizeof r.red)) {
            fprintf(stderr, "changed by call %ld: %d %d %d\n", numbers[i % 5], memcmp(want, r.out + 1, sizeof want),
                    memcmp(r.xin, r.xout, 256), memcmp(r.red, r.redout, sizeof r.red));
            return 1;
        }
    }
    puts("ok");
    return 0;
}
