/* Slurm's --forebay, and lines `#FB` of a job script: a pool for a batch job, which all of its steps see.
 *
 *     gcc -shared -fPIC -O2 -o spank_forebay.so spank_forebay.c      (headers: Debian's libslurm-dev)
 *     plugstack.conf:  optional /path/spank_forebay.so program=/path/bin/forebay
 *     sbatch --forebay=size=4G,in=./case:/case,out=/case/results:./results job.sh
 *     #FB stage_in ./case /case           (docs/operating/slurm.md has all of them)
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
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(forebay, 1);

/* Pairs to be staged in, and out; options of `#FB up`; words of a command. */
enum { MAX_PAIRS = 16, MAX_OPTIONS = 32, MAX_WORDS = MAX_OPTIONS + 16 };
/* How far a script is read for lines `#FB`, and the length of such a line. Bytes. */
enum { MAX_SCRIPT_BYTES = 65536, MAX_LINE_BYTES = 4096 };
/* How long one command may take (seconds), and how often stage-out is tried. */
enum { LIMIT = 3600, TRIES = 3 };

struct pair {
    char *from, *to;
};

/* What the option and the script ask for. */
struct wanted {
    char *media, *origin, *up[MAX_OPTIONS];
    /* `#FB campaign NAME [SPEC]`; SPEC: it is made if it isn't there. */
    char *campaign, *spec;
    struct pair in[MAX_PAIRS], out[MAX_PAIRS];
    int ups, ins, outs, has_origin, is_empty;
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

/* NULL, or what is wrong. */
static const char *add_pair(struct wanted *wanted, int is_in, char *from, char *to)
{
    int *count = is_in ? &wanted->ins : &wanted->outs;
    if (*count == MAX_PAIRS)
        return "more than 16 pairs";
    (is_in ? wanted->in : wanted->out)[(*count)++] = (struct pair){from, to};
    return NULL;
}

/* Reads the option's text. NULL, or what is wrong with it. The strings are never freed: the process ends soon. */
static const char *parse(const char *text, struct wanted *wanted)
{
    static char wrong[256];
    char *rest = strdup(text), *word;
    wanted->is_empty = 0;
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
        if (is_in || is_out) {
            /* The side outside may be a bucket, whose name has a colon. */
            char *colon = is_in ? strrchr(value, ':') : strchr(value, ':');
            if (!colon) {
                snprintf(wrong, sizeof wrong, "%s=%s isn't SRC:DST", word, value);
                return wrong;
            }
            *colon = 0;
            const char *full = add_pair(wanted, is_in, value, colon + 1);
            if (full)
                return full;
        } else if (!strcmp(word, "size")) {
            if (asprintf(&wanted->media, "memory:%s", value) < 0)
                return "no memory";
        } else if (!strcmp(word, "media"))
            wanted->media = value;
        else if (!strcmp(word, "origin")) {
            wanted->origin = value;
            wanted->has_origin = 1;
        } else {
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
        char *full[MAX_WORDS + 2] = {(char *)program};
        for (int n = 0; n < MAX_WORDS && words[n]; n++)
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

/* Copies the head of the script, MAX_SCRIPT_BYTES bytes at most, to a file: with the user's rights, since the user may have
 * put anything in the script's place. -1: it can't be read. */
static int copy_script(spank_t sp, const char *path, int to)
{
    pid_t pid = fork();
    if (pid == 0) {
        char block[MAX_SCRIPT_BYTES];
        ssize_t got = 0, size = 0;
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGALRM, SIG_DFL);
        alarm(60);
        int fd = become(sp) ? -1 : open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
        while (fd >= 0 && (got = read(fd, block + size, sizeof block - size)) > 0)
            size += got;
        _exit(fd < 0 || got < 0 || write(to, block, size) != size);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
}

/* A word of a directive with the job's number for %j; NULL if it has what a shell or sbatch would expand. The strings
 * are never freed. */
static char *expand(const char *word, uint32_t job, const char *also)
{
    char *text = malloc(MAX_LINE_BYTES + 16 * strlen(word)), *to = text;
    for (; to && *word; word++) {
        unsigned char sign = *word;
        if (sign == '%' && word[1] == 'j') {
            to += sprintf(to, "%u", job);
            word++;
        } else if (sign >= 0x80 || (sign >= 'a' && sign <= 'z') || (sign >= 'A' && sign <= 'Z') ||
                   (sign >= '0' && sign <= '9') || strchr("._/-+=:,@", sign) || strchr(also, sign))
            *to++ = sign;
        else
            return NULL;
    }
    if (to)
        *to = 0;
    return text;
}

/* One line `#FB COMMAND WORDS`, without its `#FB`. NULL, or what is wrong with it. */
static const char *read_directive(char *line, uint32_t job, struct wanted *wanted)
{
    static char wrong[256];
    char *words[MAX_OPTIONS + 1], *word, *rest = line;
    int count = 0;
    while ((word = strsep(&rest, " \t\r"))) {
        if (!*word)
            continue;
        if (count > MAX_OPTIONS)
            return "more than 32 words";
        words[count] = expand(word, job, count && !strcmp(words[0], "up") ? "*" : "");
        if (!words[count]) {
            snprintf(wrong, sizeof wrong, "'%.100s' has signs that no shell expands here; only %%j is known", word);
            return wrong;
        }
        count++;
    }
    if (count == 0)
        return "a command is missing: up, campaign, stage_in, stage_out";
    wanted->is_empty = 0;
    if (!strcmp(words[0], "up")) {
        for (int n = 1; n < count; n++) {
            /* The job has one pool, on its own nodes. */
            static const char *const ours[] = {"--pool", "--nodes", "--hosts", "--rsh", "--mpi", "--reopen", "--from"};
            for (size_t k = 0; k < sizeof ours / sizeof *ours; k++)
                if (!strncmp(words[n], ours[k], strlen(ours[k])) && strchr("=", words[n][strlen(ours[k])])) {
                    snprintf(wrong, sizeof wrong, "up: %s isn't for a job's own pool", ours[k]);
                    return wrong;
                }
            if (wanted->ups == MAX_OPTIONS)
                return "more than 32 options of up";
            wanted->has_origin |= !strcmp(words[n], "--origin") || !strncmp(words[n], "--origin=", 9);
            wanted->up[wanted->ups++] = words[n];
        }
        return NULL;
    }
    int is_in = !strcmp(words[0], "stage_in");
    if (is_in || !strcmp(words[0], "stage_out")) {
        if (count != 3 || words[1][0] == '-' || words[2][0] == '-') {
            snprintf(wrong, sizeof wrong, "%s takes SRC and DST", words[0]);
            return wrong;
        }
        return add_pair(wanted, is_in, words[1], words[2]);
    }
    if (!strcmp(words[0], "campaign")) {
        if (count < 2 || count > 3 || words[1][0] == '-' || (count == 3 && words[2][0] == '-'))
            return "campaign takes NAME and, if it is to be made, SPEC: campaign case7 100G,scratch,7d";
        if (wanted->campaign)
            return "a job has one campaign";
        wanted->campaign = words[1];
        wanted->spec = count == 3 ? words[2] : NULL;
        /* Names have no commas: a word that has some says what a new campaign is to be. */
        if (count == 2 && strchr(words[1], ',')) {
            wanted->spec = words[1];
            if (asprintf(&wanted->campaign, "job-%u", job) < 0)
                return "no memory";
        }
        return NULL;
    }
    snprintf(wrong, sizeof wrong, "there is no '%.100s'; there are up, campaign, stage_in, stage_out", words[0]);
    return wrong;
}

/* Reads the lines `#FB` of a batch script: those before its first command, as sbatch does with its own. NULL, or what
 * is wrong with them. */
static const char *read_script(spank_t sp, uint32_t job, struct wanted *wanted)
{
    static char wrong[512], line[MAX_LINE_BYTES];
    int count = 0, is_rest = 0;
    char **words = NULL;
    const char *bad = NULL;
    int fd = memfd_create("forebay-script", MFD_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    if (!file || spank_get_item(sp, S_JOB_ARGV, &count, &words) || count == 0 || copy_script(sp, words[0], fd)) {
        /* Most jobs have no such lines: they go on. */
        slurm_error("forebay: the job's script can't be read, so lines #FB have no effect");
        if (file)
            fclose(file);
        return NULL;
    }
    rewind(file);
    for (int number = 1; !bad && fgets(line, sizeof line, file);) {
        size_t len = strlen(line);
        int is_whole = len && line[len - 1] == '\n';
        int is_ours = !is_rest && !strncmp(line, "#FB", 3) && (len == 3 || strchr(" \t\r\n", line[3]));
        if (is_whole)
            line[len - 1] = 0;
        if (!is_rest && line[0] != '#' && line[strspn(line, " \t\r")])
            break;
        if (is_ours)
            bad = len == sizeof line - 1 ? "longer than 4094 bytes" : read_directive(line + 3, job, wanted);
        if (bad) {
            snprintf(wrong, sizeof wrong, "line %d, #FB: %s", number, bad);
            bad = wrong;
        }
        number += is_whole;
        is_rest = !is_whole;
    }
    fclose(file);
    return bad;
}

/* What the job wants, by its option and, in the batch step, by its script. NULL, or what is wrong. */
static const char *read_all(spank_t sp, int is_batch, struct wanted *wanted)
{
    uint32_t job = 0;
    memset(wanted, 0, sizeof *wanted);
    wanted->is_empty = 1;
    const char *wrong = option_text ? parse(option_text, wanted) : NULL;
    if (wrong || !is_batch)
        return wrong;
    wrong = spank_get_item(sp, S_JOB_ID, &job) ? "no job" : read_script(sp, job, wanted);
    if (!wrong && wanted->campaign && wanted->has_origin)
        return "the origin of a campaign's pool is its data: no other one";
    return wrong;
}

/* `forebay stage DIRECTION SRC DST`. */
static int stage(spank_t sp, const char *pool, const char *direction, const struct pair *pair, const char *messages)
{
    const char *words[] = {"stage", direction, pair->from, pair->to, "--pool", pool, NULL};
    return run(sp, words, -1, messages);
}

/* The job's pool, with all that is to be staged in. */
static int begin(spank_t sp, const char *pool, const struct wanted *wanted)
{
    const char *up[MAX_WORDS] = {"up", "--pool", pool};
    int n = 3;
    if (wanted->campaign && wanted->spec) {
        const char *create[] = {"campaign", "create", "--if-absent", wanted->campaign, wanted->spec, NULL};
        int code = run(sp, create, -1, NULL);
        if (code != 0) {
            fprintf(stderr, "forebay: there is no campaign %s, and it can't be made (exit code %d)\n",
                    wanted->campaign, code);
            return -1;
        }
    }
    if (wanted->campaign) {
        const char *of_campaign[] = {"campaign", "up", wanted->campaign, "--as", pool};
        n = sizeof of_campaign / sizeof *of_campaign;
        memcpy(up, of_campaign, sizeof of_campaign);
    }
    if (wanted->media) {
        up[n++] = "--media";
        up[n++] = wanted->media;
    }
    if (wanted->origin) {
        up[n++] = "--origin";
        up[n++] = wanted->origin;
    }
    for (int i = 0; i < wanted->ups; i++)
        up[n++] = wanted->up[i];
    int code = run(sp, up, -1, NULL);
    if (code != 0) {
        fprintf(stderr, "forebay: the pool of this job can't be started (%s up: exit code %d)\n", program, code);
        return -1;
    }
    for (int i = 0; i < wanted->ins; i++)
        if (stage(sp, pool, "in", &wanted->in[i], NULL) != 0) {
            const char *down[] = {"down", "--force", "--pool", pool, NULL};
            const char *leave[] = {"campaign", "down", "--force", wanted->campaign, NULL};
            run(sp, wanted->campaign ? leave : down, -1, NULL);
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
        while (stage(sp, pool, "out", &wanted->out[i], messages) != 0 && ++tries < TRIES)
            sleep(1);
        missing |= tries == TRIES;
    }
    if (wanted->has_origin || wanted->campaign) {
        const char *sync[] = {"origin", "sync", "--pool", pool, NULL};
        missing |= run(sp, sync, -1, messages) != 0;
    }
    if (missing) {
        slurm_error("forebay: stage-out of pool %s is incomplete, so it stays; see %s", pool, messages);
        return;
    }
    const char *down[] = {"down", "--force", "--pool", pool, NULL};
    const char *leave[] = {"campaign", "down", "--force", wanted->campaign, NULL};
    run(sp, wanted->campaign ? leave : down, -1, messages);
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
    struct wanted wanted = {0};
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
    if (identify(sp, pool, sizeof pool, &is_batch))
        return option_text ? -1 : 0;
    if (!(option_text || is_batch) || is_daemon(sp))
        return 0;
    const char *wrong = read_all(sp, is_batch, &wanted);
    if (wrong) {
        fprintf(stderr, "forebay: %s; the job isn't run\n", wrong);
        return -1;
    }
    /* Steps of a job with lines `#FB` have the variables from the script that starts them. */
    if (wanted.is_empty)
        return 0;
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
    if (identify(sp, pool, sizeof pool, &is_batch) || !is_batch || read_all(sp, 1, &wanted) || wanted.is_empty)
        return 0;
    end(sp, pool, &wanted);
    return 0;
}
