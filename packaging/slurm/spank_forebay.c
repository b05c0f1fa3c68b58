/* Slurm's --forebay: a pool for a batch job, which all of its steps see.
 *
 *     gcc -shared -fPIC -O2 -o spank_forebay.so spank_forebay.c      (headers: Debian's libslurm-dev)
 *     plugstack.conf:  optional /path/spank_forebay.so program=/path/bin/forebay
 *     sbatch --forebay=size=4G,in=./case:/case,out=/case/results:./results job.sh
 *
 * The pool is made before the batch script begins, and removed after it has ended, when all results are out. If that
 * fails, it stays, and says so. Everything is done by the command, with the user's rights and environment. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(forebay, 1);

/* Pairs of in= and out=; words of a command. */
enum { MOST_PAIRS = 16, MOST_WORDS = 16 };
/* How long one command may take (seconds), and how often stage-out is tried. */
enum { LIMIT = 3600, TRIES = 3 };

struct wanted {
    char *media, *origin;
    char *in[MOST_PAIRS], *out[MOST_PAIRS];
    int ins, outs;
};

static const char *program = "forebay";
static char *option_text;

static int on_option(int value, const char *text, int remote)
{
    (void)value;
    (void)remote;
    free(option_text);
    option_text = strdup(text ? text : "");
    return option_text ? 0 : -1;
}

static struct spank_option option = {
    "forebay", "[size=SIZE|media=SPEC][,in=SRC:DST][,out=SRC:DST][,origin=DIR]",
    "a Forebay pool for this batch job: in and out are staged before and after it", 2, 0, on_option};

/* Reads the option's text. NULL, or what is wrong with it. The strings are never freed: the process ends soon. */
static const char *parse(const char *text, struct wanted *wanted)
{
    static char wrong[256];
    char *rest = strdup(text), *word;
    memset(wanted, 0, sizeof *wanted);
    while (rest && (word = strsep(&rest, ","))) {
        char *value = strchr(word, '=');
        if (!*word)
            continue;
        if (!value || !value[1]) {
            snprintf(wrong, sizeof wrong, "'%s' has no value", word);
            return wrong;
        }
        *value++ = 0;
        int is_in = !strcmp(word, "in"), is_out = !strcmp(word, "out");
        if ((is_in || is_out) && !strchr(value, ':')) {
            snprintf(wrong, sizeof wrong, "%s=%s isn't SRC:DST", word, value);
            return wrong;
        }
        if ((is_in && wanted->ins == MOST_PAIRS) || (is_out && wanted->outs == MOST_PAIRS))
            return "more than 16 pairs";
        if (is_in)
            wanted->in[wanted->ins++] = value;
        else if (is_out)
            wanted->out[wanted->outs++] = value;
        else if (!strcmp(word, "size")) {
            if (asprintf(&wanted->media, "memory:%s", value) < 0)
                return "no memory";
        } else if (!strcmp(word, "media"))
            wanted->media = value;
        else if (!strcmp(word, "origin"))
            wanted->origin = value;
        else {
            snprintf(wrong, sizeof wrong, "there is no '%s'; there are size, media, in, out, origin", word);
            return wrong;
        }
    }
    return NULL;
}

/* The value of a variable of the job's environment, or NULL. */
static const char *variable(char **env, const char *name)
{
    size_t len = strlen(name);
    for (; env && *env; env++)
        if (!strncmp(*env, name, len) && (*env)[len] == '=')
            return *env + len + 1;
    return NULL;
}

/* Becomes the job's user, in a child of a privileged process. */
static int become(spank_t sp)
{
    uid_t uid = 0;
    gid_t gid = 0, *groups = NULL;
    int count = 0;
    if (geteuid() != 0)
        return 0;
    if (spank_get_item(sp, S_JOB_UID, &uid) || spank_get_item(sp, S_JOB_GID, &gid))
        return -1;
    if (spank_get_item(sp, S_JOB_SUPPLEMENTARY_GIDS, &groups, &count) || setgroups(count, groups))
        return -1;
    return setgid(gid) || setuid(uid) ? -1 : 0;
}

/* Runs the command with the job's rights, environment and directory. `to`: its standard output; `messages`: a file for
 * both outputs, or NULL for the caller's. The exit code; -1: it couldn't be run, or has taken too long. */
static int run(spank_t sp, const char *const *words, int to, const char *messages)
{
    char **env = NULL;
    if (spank_get_item(sp, S_JOB_ENV, &env))
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        char *full[MOST_WORDS + 2] = {(char *)program};
        for (int n = 0; n < MOST_WORDS && words[n]; n++)
            full[n + 1] = (char *)words[n];
        const char *dir = variable(env, "SLURM_SUBMIT_DIR");
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        if (become(sp) || (dir && chdir(dir)))
            _exit(125);
        if (messages) {
            int fd = open(messages, O_WRONLY | O_CREAT | O_APPEND, 0600);
            if (fd >= 0) {
                dup2(fd, 1);
                dup2(fd, 2);
            }
        }
        if (to >= 0)
            dup2(to, 1);
        /* The path of the job finds the program. */
        const char *path = variable(env, "PATH");
        if (path)
            setenv("PATH", path, 1);
        execvpe(program, full, env);
        _exit(127);
    }
    if (to >= 0)
        close(to);
    if (pid < 0)
        return -1;
    for (time_t began = time(NULL);;) {
        int status, got = waitpid(pid, &status, WNOHANG);
        if (got == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        if (got < 0)
            return -1;
        if (time(NULL) - began > LIMIT) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return -1;
        }
        struct timespec pause = {0, 5000000};
        nanosleep(&pause, NULL);
    }
}

/* `forebay stage DIRECTION SRC DST`. */
static int stage(spank_t sp, const char *pool, const char *direction, const char *pair, const char *messages)
{
    char *from = strdup(pair), *to = from ? strchr(from, ':') : NULL;
    if (!to)
        return -1;
    *to++ = 0;
    const char *words[] = {"stage", direction, from, to, "--pool", pool, NULL};
    int code = run(sp, words, -1, messages);
    free(from);
    return code;
}

/* The job's pool, with all that is to be staged in. */
static int begin(spank_t sp, const char *pool, const struct wanted *wanted)
{
    const char *up[MOST_WORDS] = {"up", "--pool", pool};
    int n = 3;
    if (wanted->media) {
        up[n++] = "--media";
        up[n++] = wanted->media;
    }
    if (wanted->origin) {
        up[n++] = "--origin";
        up[n++] = wanted->origin;
    }
    int code = run(sp, up, -1, NULL);
    if (code != 0) {
        fprintf(stderr, "forebay: the pool of this job can't be started (%s up: exit code %d)\n", program, code);
        return -1;
    }
    for (int i = 0; i < wanted->ins; i++)
        if (stage(sp, pool, "in", wanted->in[i], NULL) != 0) {
            const char *down[] = {"down", "--force", "--pool", pool, NULL};
            run(sp, down, -1, NULL);
            fprintf(stderr, "forebay: stage-in failed; the job isn't run\n");
            return -1;
        }
    return 0;
}

/* Stages out, and removes the pool, after the batch script. Messages go to forebay-JOB.out in the job's directory. */
static void end(spank_t sp, const char *pool, const struct wanted *wanted)
{
    char messages[64];
    snprintf(messages, sizeof messages, "forebay-%s.out", pool);
    int missing = 0;
    for (int i = 0; i < wanted->outs; i++) {
        /* Tasks of a job that is cancelled may still be changing files. */
        int tries = 0;
        while (stage(sp, pool, "out", wanted->out[i], messages) != 0 && ++tries < TRIES)
            sleep(1);
        missing |= tries == TRIES;
    }
    if (wanted->origin) {
        const char *sync[] = {"origin", "sync", "--pool", pool, NULL};
        missing |= run(sp, sync, -1, messages) != 0;
    }
    if (missing) {
        slurm_error("forebay: stage-out of pool %s is incomplete, so it stays; see %s", pool, messages);
        return;
    }
    const char *down[] = {"down", "--force", "--pool", pool, NULL};
    run(sp, down, -1, messages);
}

/* Gives a task the variables by which programs see the pool: those that `forebay exec` sets. */
static int attach(spank_t sp, const char *pool)
{
    const char *words[] = {"exec", "--pool", pool, "--", "env", "-0", NULL};
    /* Environments may be larger than a pipe holds. */
    FILE *file = tmpfile();
    char *text = NULL;
    size_t size = 0;
    if (!file)
        return -1;
    int code = run(sp, words, dup(fileno(file)), NULL);
    rewind(file);
    while (code == 0 && getdelim(&text, &size, 0, file) > 0) {
        char *value = strchr(text, '=');
        if (!value || (strncmp(text, "FOREBAY_", 8) && strncmp(text, "LD_PRELOAD=", 11)))
            continue;
        *value++ = 0;
        if (spank_setenv(sp, text, value, 1))
            code = -1;
    }
    free(text);
    fclose(file);
    return code;
}

/* Whether this task is one of Forebay's own daemons. */
static int is_daemon(spank_t sp)
{
    int count = 0;
    char **words = NULL;
    if (spank_get_item(sp, S_JOB_ARGV, &count, &words) || count == 0)
        return 0;
    const char *name = strrchr(words[0], '/');
    return !strcmp(name ? name + 1 : words[0], "forebay");
}

/* The name of the job's pool, and whether this is its batch step. */
static int identify(spank_t sp, char *pool, size_t size, int *is_batch)
{
    uint32_t job = 0, step = 0;
    if (spank_get_item(sp, S_JOB_ID, &job) || spank_get_item(sp, S_JOB_STEPID, &step))
        return -1;
    *is_batch = step == SLURM_BATCH_SCRIPT;
    snprintf(pool, size, "job-%u", job);
    return 0;
}

int slurm_spank_init(spank_t sp, int count, char **words)
{
    for (int n = 0; n < count; n++)
        if (!strncmp(words[n], "program=", 8))
            program = words[n] + 8;
    return spank_option_register(sp, &option);
}

/* In sbatch and its like: a wrong option is told at once. */
int slurm_spank_init_post_opt(spank_t sp, int count, char **words)
{
    (void)sp;
    (void)count;
    (void)words;
    struct wanted wanted;
    const char *wrong = option_text ? parse(option_text, &wanted) : NULL;
    if (wrong)
        slurm_error("--forebay: %s", wrong);
    return wrong ? -1 : 0;
}

int slurm_spank_task_init(spank_t sp, int count, char **words)
{
    (void)count;
    (void)words;
    struct wanted wanted;
    char pool[32];
    int is_batch;
    if (!option_text || is_daemon(sp))
        return 0;
    if (parse(option_text, &wanted) || identify(sp, pool, sizeof pool, &is_batch))
        return -1;
    if (is_batch && begin(sp, pool, &wanted))
        return -1;
    if (attach(sp, pool)) {
        fprintf(stderr, "forebay: the pool %s of this job can't be used\n", pool);
        return -1;
    }
    return 0;
}

int slurm_spank_task_exit(spank_t sp, int count, char **words)
{
    (void)count;
    (void)words;
    struct wanted wanted;
    char pool[32];
    int is_batch;
    if (!option_text || parse(option_text, &wanted) || identify(sp, pool, sizeof pool, &is_batch) || !is_batch)
        return 0;
    end(sp, pool, &wanted);
    return 0;
}
