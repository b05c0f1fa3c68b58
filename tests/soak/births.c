/* Processes of all kinds of birth and death, thousands in a second: births KIND[,KIND...] DIRECTORY COUNT SECONDS SEED
 *
 * DIRECTORY must hold a file `f`. Runs until COUNT processes were born (0: no bound) or SECONDS are over, and prints how
 * many of each kind there were. Every process opens, reads, or looks at files of DIRECTORY and may lock, map or write
 * one of its own, which it removes unless it is killed; names of killed ones begin with `left-` and are removed at
 * the end. `births rates DIRECTORY PID...` prints how many times a file is created, opened, looked at, and read per
 * second of processor time, its own and that of the servers PID: what other programs do doesn't count.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static const char *dir;
static char self[4096];
static unsigned random_state;
static volatile long total, unreaped;

#define DIE(...)                                                                                                     \
    do {                                                                                                             \
        fprintf(stderr, __VA_ARGS__);                                                                                \
        fprintf(stderr, " (%s)\n", strerror(errno));                                                                 \
        exit(9);                                                                                                     \
    } while (0)

static unsigned any(unsigned bound)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state % bound;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static pid_t servers[64];
static int server_count;

/* The seconds of processor time that this process and the servers have taken. */
static double processor_time(void)
{
    struct timespec t;
    double taken = 0;
    for (int i = -1; i < server_count; i++) {
        clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
        if (i >= 0 && clock_getcpuclockid(servers[i], &clock) != 0)
            continue;
        if (clock_gettime(clock, &t) == 0)
            taken += t.tv_sec + t.tv_nsec / 1e9;
    }
    return taken;
}

static const char *at(char *to, const char *name)
{
    snprintf(to, 4096, "%s/%s", dir, name);
    return to;
}

/* Reads the file that all know. */
static void read_f(void)
{
    char path[4096], bytes[512];
    int fd = open(at(path, "f"), O_RDONLY | (any(2) ? O_CLOEXEC : 0));
    if (fd < 0)
        DIE("open %s", path);
    if (read(fd, bytes, sizeof bytes) <= 0)
        DIE("read %s", path);
    if (any(4))
        close(fd);
}

static void *map_of(int fd)
{
    void *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        DIE("mmap");
    *(volatile char *)map = 1;
    return map;
}

/* What a process does with the pool. `kept`: it doesn't remove its file, since it is to be killed. */
static void use(int kept, int what)
{
    char path[4096], name[64];
    struct stat s;
    switch (what % 5) {
    case 0:
        /* Only looks at a name: it takes no process slot. */
        if (stat(at(path, "f"), &s) != 0)
            DIE("stat %s", path);
        return;
    case 1:
        read_f();
        return;
    default: {
        snprintf(name, sizeof name, "%s-%d-%u", kept ? "left" : "own", getpid(), any(1u << 30));
        int fd = open(at(path, name), O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0)
            DIE("make %s", path);
        if (write(fd, name, sizeof name) != sizeof name)
            DIE("write %s", path);
        if (what % 5 == 3) {
            struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
            if (flock(fd, LOCK_EX) != 0 || fcntl(fd, F_SETLK, &lock) != 0)
                DIE("lock %s", path);
        }
        void *map = what % 5 == 4 ? map_of(fd) : NULL;
        if (!kept && unlink(path) != 0)
            DIE("unlink %s", path);
        if (map && any(2))
            munmap(map, 4096);
        if (any(2))
            close(fd);
        read_f();
    }
    }
}

static pid_t born(pid_t pid)
{
    if (pid < 0)
        DIE("no child after %ld", total);
    if (pid > 0)
        total++;
    else
        random_state ^= getpid() * 2654435761u;
    return pid;
}

static void expect(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            DIE("wait for %d", pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "child %d ended with %x\n", pid, status);
        exit(9);
    }
}

static pid_t spawn(char **argv)
{
    pid_t pid;
    int e = posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ);
    if (e != 0) {
        errno = e;
        DIE("spawn %s after %ld", argv[0], total);
    }
    return born(pid);
}

static char **again(const char *role, const char *number)
{
    static char *argv[8];
    static char seed[16];
    snprintf(seed, sizeof seed, "%u", any(1u << 30));
    char *all[] = {self, (char *)role, (char *)dir, (char *)number, seed, NULL};
    memcpy(argv, all, sizeof all);
    return argv;
}

static void by_fork(void)
{
    pid_t pid = born(fork());
    if (pid == 0) {
        use(0, any(5));
        if (any(2))
            exit(0);
        _exit(0);
    }
    expect(pid);
}

static void by_spawn(void)
{
    expect(spawn(again("as-leaf", "0")));
}

static void by_vfork(void)
{
    char **argv = again("as-leaf", "0");
    pid_t pid = vfork();
    if (pid == 0) {
        execv(argv[0], argv);
        _exit(9);
    }
    expect(born(pid));
}

static void by_chain(void)
{
    pid_t pid = born(fork());
    if (pid == 0) {
        use(0, any(5));
        execv(self, again("as-chain", "4"));
        _exit(9);
    }
    expect(pid);
    total += 4;
}

static void by_daemon(void)
{
    pid_t pid = born(fork());
    if (pid == 0) {
        setsid();
        pid = fork();
        if (pid < 0)
            _exit(9);
        if (pid > 0)
            _exit(0);
        use(0, any(5));
        usleep(any(2000));
        use(0, any(5));
        _exit(0);
    }
    expect(pid);
    total++;
    unreaped++;
}

static void *thread(void *seed)
{
    char path[4096];
    struct stat s;
    (void)seed;
    for (int i = 0; i < 50; i++) {
        int fd = open(at(path, "f"), O_RDONLY);
        if (fd >= 0)
            close(fd);
        stat(path, &s);
    }
    return NULL;
}

/* Other threads are in the middle of something when it exits, executes another program, or its first thread ends. */
static void by_threads(void)
{
    pid_t pid = born(fork());
    if (pid == 0) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++)
            if (pthread_create(&threads[i], NULL, thread, NULL) != 0)
                _exit(9);
        usleep(any(300));
        switch (any(4)) {
        case 0:
            exit(0);
        case 1:
            execv(self, again("as-leaf", "0"));
            _exit(9);
        case 2:
            pthread_exit(NULL);
        default:
            for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
            _exit(0);
        }
    }
    expect(pid);
}

static void by_kill(void)
{
    pid_t pid = born(fork());
    if (pid == 0) {
        if (any(3) == 0)
            execv(self, again("as-busy", "0"));
        for (int what = any(5);; what++)
            use(1, what);
    }
    usleep(any(3000));
    kill(pid, SIGKILL);
    if (any(3) == 0)
        unreaped++;
    else
        waitpid(pid, NULL, 0);
}

static void by_zombie(void)
{
    pid_t pid = born(fork());
    if (pid == 0) {
        use(0, any(5));
        _exit(0);
    }
    unreaped++;
}

static void by_pipeline(void)
{
    char text[8192];
    snprintf(text, sizeof text, "cd '%.4000s' && cat f | sort | head -n 3 | wc -c > own-%u && cat own-*%u > /dev/null && "
             "rm own-*%u", dir, random_state, random_state, random_state);
    char *argv[] = {"sh", "-c", text, NULL};
    expect(spawn(argv));
    total += 6;
}

/* Many at once; some end, some are killed. */
static void by_crowd(int size)
{
    int go[2];
    static pid_t pids[4096];
    if (pipe(go) != 0)
        DIE("pipe");
    for (int i = 0; i < size; i++) {
        pids[i] = born(fork());
        if (pids[i] == 0) {
            char c;
            close(go[1]);
            use(0, any(5));
            read_f();
            _exit(read(go[0], &c, 1) == 0 ? 0 : 9);
        }
    }
    for (int i = 0; i < size; i += 3)
        kill(pids[i], SIGKILL);
    close(go[0]);
    close(go[1]);
    for (int i = 0; i < size; i++) {
        if (i % 3 != 0)
            expect(pids[i]);
        else
            waitpid(pids[i], NULL, 0);
    }
}

/* Collects zombies and orphans; all of them if `all`. */
static void reap(int all)
{
    double until = now() + 20;
    while (unreaped > (all ? 0 : 40)) {
        pid_t pid = waitpid(-1, NULL, all ? WNOHANG : 0);
        if (pid > 0) {
            unreaped--;
            continue;
        }
        if (pid < 0 || now() > until)
            break;
        usleep(1000);
    }
    if (all)
        while (waitpid(-1, NULL, 0) > 0)
            ;
}

static void remove_left(void)
{
    char path[4096];
    DIR *d = opendir(dir);
    struct dirent *e;
    if (!d)
        DIE("opendir %s", dir);
    while ((e = readdir(d)))
        if (!strncmp(e->d_name, "left-", 5) || !strncmp(e->d_name, "own-", 4))
            unlink(at(path, e->d_name));
    closedir(d);
}

static void rates(void)
{
    char path[4096], bytes[4096];
    const char *names[] = {"create", "open", "stat", "read"};
    int f = open(at(path, "f"), O_RDONLY);
    for (int what = 0; what < 4; what++) {
        double best = 0;
        for (int turn = 0; turn < 5; turn++) {
            double begun = now(), taken = processor_time(), end;
            long n = 0;
            do {
                for (int i = 0; i < 50; i++, n++) {
                    struct stat s;
                    int fd;
                    switch (what) {
                    case 0:
                        snprintf(bytes, sizeof bytes, "own-%ld", n);
                        fd = open(at(path, bytes), O_WRONLY | O_CREAT, 0600);
                        if (fd < 0 || close(fd) != 0 || unlink(path) != 0)
                            DIE("create %s", path);
                        break;
                    case 1:
                        fd = open(at(path, "f"), O_RDONLY);
                        if (fd < 0 || close(fd) != 0)
                            DIE("open %s", path);
                        break;
                    case 2:
                        if (stat(at(path, "f"), &s) != 0)
                            DIE("stat %s", path);
                        break;
                    default:
                        if (pread(f, bytes, sizeof bytes, 0) <= 0)
                            DIE("read");
                    }
                }
                end = now();
            } while (end - begun < 0.06);
            taken = processor_time() - taken;
            if (n / taken > best)
                best = n / taken;
        }
        printf("%s %.0f\n", names[what], best);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    dir = argv[2];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    if (len < 0 || argv[0][0] == '/')
        snprintf(self, sizeof self, "%s", argv[0]);
    random_state = argc > 4 ? strtoul(argv[argc - 1], NULL, 10) * 2 + 1 : 1;
    if (!strcmp(argv[1], "rates")) {
        for (int i = 3; i < argc && server_count < 64; i++)
            servers[server_count++] = atoi(argv[i]);
        rates();
        return 0;
    }
    if (!strcmp(argv[1], "as-leaf")) {
        use(0, any(5));
        return 0;
    }
    if (!strcmp(argv[1], "as-read")) {
        read_f();
        return 0;
    }
    if (!strcmp(argv[1], "as-busy"))
        for (int what = any(5);; what++)
            use(1, what);
    if (!strcmp(argv[1], "as-chain")) {
        char number[16];
        int left = atoi(argv[3]);
        use(0, any(5));
        if (left == 0)
            return 0;
        snprintf(number, sizeof number, "%d", left - 1);
        execv(self, again("as-chain", number));
        DIE("exec %s", self);
    }
    if (argc < 6)
        return 2;
    long count = atol(argv[3]);
    double until = now() + atof(argv[4]);
    static const struct {
        const char *name;
        void (*birth)(void);
    } all[] = {{"fork", by_fork},       {"spawn", by_spawn},     {"vfork", by_vfork},   {"chain", by_chain},
               {"daemon", by_daemon},   {"threads", by_threads}, {"kill", by_kill},     {"zombie", by_zombie},
               {"pipeline", by_pipeline}};
    enum { KINDS = sizeof all / sizeof *all };
    int chosen[KINDS], n = 0;
    long born_of[KINDS] = {0};
    int crowd = 0;
    for (char *kind = strtok(argv[1], ","); kind; kind = strtok(NULL, ",")) {
        int known = sscanf(kind, "crowd=%d", &crowd) == 1;
        for (int i = 0; i < KINDS; i++)
            if (!strcmp(all[i].name, kind) || !strcmp(kind, "all"))
                known = 1, chosen[n++] = i;
        if (!known)
            return 2;
    }
    /* Orphans come to us. */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (crowd)
        by_crowd(crowd > 4096 ? 4096 : crowd);
    while (n && (!count || total < count) && now() < until) {
        int i = chosen[any(n)];
        long before = total;
        all[i].birth();
        born_of[i] += total - before;
        reap(0);
    }
    reap(1);
    remove_left();
    printf("total %ld\n", total);
    for (int i = 0; i < KINDS; i++)
        if (born_of[i])
            printf("%s %ld\n", all[i].name, born_of[i]);
    return 0;
}
