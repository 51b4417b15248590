/* SPDX-License-Identifier: MIT */
/* OpenMP may give fewer threads than were asked for. Prompts go through the vendor's products, which share their work
 * by a count of threads: every limit must give the logits of two free threads. */
#include "config.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "api/kvasir.h"
#include "tests/tap.h"

#ifdef _OPENMP
enum { N = 96, MSG = 256 };

static char msg[MSG];

static bool done(kvasir_status st)
{
    if (st != KVASIR_OK) fprintf(stderr, "# status %d: %s\n", (int)st, msg);
    return st == KVASIR_OK;
}

static kvasir_model *load(int threads)
{
    kvasir_model *m;
    const kvasir_options o = {.struct_size = sizeof o, .device = "cpu", .threads = threads, .chunk = N / 2};
    return done(kvasir_model_load(&m, tap_path("tests/data/models/qwen3-bf16"), &o, msg, MSG)) ? m : NULL;
}

/* FNV-1a of the logits after a prompt of two chunks and after a step; 0: failed. */
static uint64_t logits_of(kvasir_model *m)
{
    int32_t ids[N];
    uint64_t hash = 0xcbf29ce484222325;
    kvasir_session *s = NULL;
    kvasir_info info = {.struct_size = sizeof info};
    if (!m || !done(kvasir_model_info(m, &info, msg, MSG))) return 0;
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + 11) % info.vocab;
    bool good = done(kvasir_session_create(&s, m, NULL, NULL, N + 1, msg, MSG)) &&
                done(kvasir_session_feed(s, ids, N, KVASIR_PROMPT, NULL, msg, MSG));
    for (int step = 0; step < 2 && good; step++) {
        const float *x;
        const unsigned char *p;
        good = (step == 0 || done(kvasir_decode(&s, 1, ids, msg, MSG))) && done(kvasir_session_logits(s, &x, msg, MSG));
        p = (const unsigned char *)x;
        for (size_t i = 0; good && i < (size_t)info.vocab * sizeof *x; i++) hash = (hash ^ p[i]) * 0x100000001b3;
    }
    kvasir_session_free(s);
    return good ? hash : 0;
}

static uint64_t once(int threads)
{
    kvasir_model *m = load(threads);
    uint64_t hash = logits_of(m);
    kvasir_model_free(m);
    return hash;
}

/* ---- hosts ---- */

static uint64_t plain(void)
{
    return once(2);
}

static uint64_t three_threads(void)
{
    return once(3);
}

static uint64_t sets_one_thread(void)
{
    omp_set_num_threads(1);
    return once(2);
}

/* Runs everything in a region of two threads, each with its own model. */
static uint64_t in_region(void)
{
    uint64_t hash[2] = {0};
#pragma omp parallel num_threads(2)
    hash[omp_get_thread_num()] = once(2);
    return !hash[1] || hash[0] == hash[1] ? hash[0] : 0;
}

static uint64_t in_nested_region(void)
{
    omp_set_max_active_levels(4);
    return in_region();
}

static uint64_t loaded_outside(void)
{
    kvasir_model *m = load(2);
    uint64_t before = logits_of(m), inside = 0, after;
#pragma omp parallel num_threads(2)
#pragma omp master
    inside = logits_of(m);
    after = logits_of(m);
    kvasir_model_free(m);
    return before == inside && inside == after ? after : 0;
}

static uint64_t loaded_inside(void)
{
    kvasir_model *m = NULL;
#pragma omp parallel num_threads(2)
#pragma omp master
    m = load(2);
    uint64_t hash = logits_of(m);
    kvasir_model_free(m);
    return hash;
}

static void *on_thread(void *hash)
{
    *(uint64_t *)hash = once(2);
    return NULL;
}

static uint64_t second_pthread(void)
{
    pthread_t t;
    uint64_t hash = 0, own = once(2);
    if (pthread_create(&t, NULL, on_thread, &hash) != 0) return 0;
    pthread_join(t, NULL);
    return own == hash ? hash : 0;
}

static uint64_t on_one_cpu(void)
{
    cpu_set_t set;
    int cpu = 0;
    sched_getaffinity(0, sizeof set, &set);
    while (!CPU_ISSET(cpu, &set)) cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    return once(2);
}

/* As where a control group allows no more processes. */
static uint64_t no_new_threads(void)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog p = {.len = sizeof f / sizeof *f, .filter = f};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) != 0) _exit(2);
    return once(2);
}

/* A call leaves the host's settings alone. */
static uint64_t keeps_settings(void)
{
    omp_set_num_threads(5);
    omp_set_dynamic(1);
    uint64_t hash = once(2);
    return omp_get_max_threads() == 5 && omp_get_dynamic() ? hash : 0;
}

static const struct {
    const char *name, *env, *value;
    uint64_t (*run)(void);
} hosts[] = {
    {"two threads", NULL, NULL, plain},
    {"OMP_THREAD_LIMIT=1", "OMP_THREAD_LIMIT", "1", plain},
    {"OMP_THREAD_LIMIT=2, three threads asked for", "OMP_THREAD_LIMIT", "2", three_threads},
    {"OMP_THREAD_LIMIT=3 in a host's region", "OMP_THREAD_LIMIT", "3", in_nested_region},
    {"OMP_DYNAMIC=true", "OMP_DYNAMIC", "true", plain},
    {"OMP_DYNAMIC=true on one CPU", "OMP_DYNAMIC", "true", on_one_cpu},
    {"OMP_MAX_ACTIVE_LEVELS=0", "OMP_MAX_ACTIVE_LEVELS", "0", plain},
    {"omp_set_num_threads(1)", NULL, NULL, sets_one_thread},
    {"a host's region, a model in each thread", NULL, NULL, in_region},
    {"a host's region with nested regions allowed", NULL, NULL, in_nested_region},
    {"a model used outside, inside and outside a region", NULL, NULL, loaded_outside},
    {"a model loaded inside a region, used outside", NULL, NULL, loaded_inside},
    {"a second thread of the host", NULL, NULL, second_pthread},
    {"the system starts no threads", NULL, NULL, no_new_threads},
    {"the host's settings stay", NULL, NULL, keeps_settings},
};

enum { N_HOSTS = sizeof hosts / sizeof hosts[0] };

/* Runs host i in a separate process, since OpenMP reads its environment once. Returns 0 on failure, 1 if not
 * possible. */
static uint64_t run_host(const char *self, size_t i)
{
    uint64_t hash = 0;
    int end[2], how = 0;
    char number[24];
    if (pipe(end) != 0) return 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        snprintf(number, sizeof number, "%zu", i);
        if (hosts[i].env) setenv(hosts[i].env, hosts[i].value, 1);
        dup2(end[1], STDOUT_FILENO);
        execl(self, self, number, (char *)NULL);
        _exit(1);
    }
    close(end[1]);
    if (read(end[0], &hash, sizeof hash) != sizeof hash) hash = 0;
    close(end[0]);
    if (child < 0 || waitpid(child, &how, 0) != child) return 0;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 2) return 1;
    return WIFEXITED(how) && WEXITSTATUS(how) == 0 ? hash : 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        uint64_t hash = hosts[atoi(argv[1]) % N_HOSTS].run();
        _exit(write(STDOUT_FILENO, &hash, sizeof hash) == sizeof hash ? 0 : 1); /* sanitizers start threads at exit */
    }
    uint64_t want = 0;
    for (size_t i = 0; i < N_HOSTS; i++) {
        uint64_t got = run_host("/proc/self/exe", i);
        if (i == 0) want = got;
        if (got == 1) tap_skip("%s: no filters of system calls here", hosts[i].name);
        else
            ok(got != 0 && got == want, "%s: %016llx, two free threads %016llx", hosts[i].name, (unsigned long long)got,
               (unsigned long long)want);
    }
    return tap_done();
}
#else
int main(void)
{
    return tap_skip_all("built without OpenMP");
}
#endif
