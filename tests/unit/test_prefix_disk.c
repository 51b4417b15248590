/* SPDX-License-Identifier: MIT */
/* The prefix store on a disk: what was whole is found again after a restart, with the same bits, and nothing else is.
 */
#include "config.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/temp_file.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "generate/prefix_disk.h"
#include "tests/unit/files.h"
#include "tests/unit/prefix_util.h"

enum { STEPS = 4 };
typedef struct {
    float logits[1 + STEPS][U_VOCAB];
} answer;

static char dir[64], path[160];

static prefix_store *store(uint64_t disk)
{
    prefix_store *p = NULL;
    err e = {0};
    const prefix_options o = {.memory = SIZE_MAX, .chunk = U_CHUNK, .dir = dir, .disk = disk, .log.name = "kept"};
    if (prefix_open(&p, &o, &e) != ST_OK) ok(false, "a store in a folder: %s", e.msg);
    return p;
}

/* The one entry in the folder: its path. Returns how many there are. */
static int entries(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));) {
        if (strlen(x->d_name) != SHA256_HEX - 1) continue;
        snprintf(path, sizeof path, "%s/%.70s", dir, x->d_name);
        n++;
    }
    if (d) closedir(d);
    return n;
}

/* Runs prompt `name` after its cached prefix; p NULL: no cache. Returns the number of cached tokens. */
static size_t ask(answer *out, prefix_store *p, int name)
{
    err e = {0};
    session *s;
    int32_t ids[MORE + 1];
    size_t n = 0;
    ids_of(ids, name, 0);
    memset(out, 0, sizeof *out);
    prefix_entry *x = p ? prefix_find(p, &(prefix_prompt){key, true, ids, MORE}, &n) : NULL;
    if (session_new(&s, &parts, "quest:skip=0:budget=24:page=4", "f16", CTX, &e) != ST_OK) abort();
    if (x && prefix_load(p, x, s, n, &e) != ST_OK) n = 0;
    const prefill_options o = {.which = LOGITS_LAST, .rows = keep_last_row, .ctx = out->logits[0], .before = n};
    if (session_prefill(&s, 1, ids + n, MORE - n, &o, &e) != ST_OK) abort();
    for (int i = 0; i < STEPS; i++) {
        int32_t id = some_id(i);
        if (session_decode(&s, 1, &id, out->logits[1 + i], &e) != ST_OK) abort();
    }
    session_free(s);
    if (x) prefix_release(p, x);
    return n;
}

static status try_to_keep(prefix_store *p, int name, err *e)
{
    return keep(p, "quest:skip=0:budget=24:page=4", key, true, name, 0, FEW, SIZE_MAX, e);
}

static void keep_one(prefix_store *p, int name)
{
    err e = {0};
    is_ok(try_to_keep(p, name, &e), &e, "prompt %d is kept", name);
}

static void check_restart(void)
{
    answer cold, warm;
    ask(&cold, NULL, 1);
    prefix_store *p = store(UINT64_MAX);
    keep_one(p, 1);
    keep_one(p, 2);
    is_int((long long)ask(&warm, p, 1), FEW, "known from memory");
    ok(memcmp(&cold, &warm, sizeof cold) == 0, "the same bits");
    prefix_close(p);
    is_int(entries(), 2, "both are on the disk at the end");
    struct stat s;
    ok(stat(path, &s) == 0 && (s.st_mode & 0777) == 0600, "the user's alone");
    p = store(UINT64_MAX);
    is_int((long long)prefix_count(p).entries, 2, "and found again");
    for (int i = 0; i < 2; i++) {
        is_int((long long)ask(&warm, p, 1), FEW, "known from the disk");
        ok(memcmp(&cold, &warm, sizeof cold) == 0, "the same bits");
    }
    ok(prefix_count(p).bytes == 0 && prefix_count(p).disk > 0, "where they are counted");
    prefix_store *again = NULL;
    err e = {0};
    const prefix_options o = {.memory = SIZE_MAX, .chunk = U_CHUNK, .dir = dir, .disk = UINT64_MAX};
    is_ok(prefix_open(&again, &o, &e), &e, "another store of the same folder");
    keep_one(p, 3);
    prefix_flush(p);
    is_int((long long)ask(&warm, again, 3), FEW, "finds what the first one keeps");
    prefix_close(again);
    prefix_close(p);
    p = store(0);
    is_int(entries(), 0, "no room: nothing is left");
    prefix_close(p);
}

/* A store that has entries of prompts 1 and 2 leaves room for one: the one that was used last stays, however soon after
 * the other one was written. */
static void check_limit(int last)
{
    answer a;
    prefix_store *p = store(UINT64_MAX);
    keep_one(p, last);
    keep_one(p, 3 - last);
    prefix_close(p);
    p = store(UINT64_MAX);
    size_t both = prefix_count(p).disk;
    is_int((long long)ask(&a, p, last), FEW, "prompt %d serves", last);
    prefix_close(p);
    p = store(both - 1);
    is_int(entries(), 1, "one of two goes");
    is_int((long long)ask(&a, p, last), FEW, "and not the one that served last");
    prefix_close(p);
    unlink(path);
}

/* Each byte that was written and is changed: the entry serves nobody. Bytes that nobody wrote may be anything. */
static void check_damage(void)
{
    answer cold, got;
    err e = {0};
    char *file = NULL;
    size_t n, bad = 0, served = 0, tried = 0;
    prefix_store *p = store(UINT64_MAX);
    keep_one(p, 1);
    prefix_close(p);
    ask(&cold, NULL, 1);
    is_int(entries(), 1, "one entry");
    is_ok(file_read(&file, &n, path, (size_t)1 << 30, &e), &e, "its file");
    for (size_t i = 0; i < n; i += file[i] || i + 400 > n ? 61 : 65536 - i % 65536, tried++) {
        file[i] = (char)(file[i] ^ (1 << i % 8));
        write_file(path, file, n);
        file[i] = (char)(file[i] ^ (1 << i % 8));
        p = store(UINT64_MAX);
        served += ask(&got, p, 1) > 0 && file[i] != 0;
        bad += memcmp(&cold, &got, sizeof cold) != 0;
        prefix_close(p);
    }
    is_int((long long)bad, 0, "%zu places: no answer changes", tried);
    is_int((long long)served, 0, "and none comes from such a file");
    for (size_t cut = 0; cut < n; cut += n / 7 + 1) {
        write_file(path, file, cut);
        p = store(UINT64_MAX);
        is_int((long long)ask(&got, p, 1), 0, "cut to %zu bytes", cut);
        prefix_close(p);
    }
    is_int(entries(), 0, "damaged files go");
    char *longer = NULL;
    const size_t saved = n - sizeof(prefix_footer);
    if (MEM_NEW(&longer, n + 1, &e) != ST_OK) abort();
    memcpy(longer, file, saved);
    memcpy(longer + saved + 1, file + saved, sizeof(prefix_footer));
    write_file(path, longer, n + 1);
    mem_free(longer);
    p = store(UINT64_MAX);
    is_int((long long)prefix_count(p).entries, 0, "a byte between session and footer: no entry");
    prefix_close(p);
    snprintf(path, sizeof path, "%s/%s", dir, other_key);
    write_file(path, file, n);
    p = store(UINT64_MAX);
    ok(prefix_count(p).entries == 0 && access(path, F_OK) != 0, "so does one with another one's name");
    prefix_close(p);
    mem_free(file);
}

/* Every call of the system that fails while an entry is written. */
static void check_failures(void)
{
    answer cold, got;
    ask(&cold, NULL, 1);
    int whole = 0, bad = 0, calls = 1;
    for (; whole < 3 && calls < 500; calls++) {
        prefix_store *p = store(UINT64_MAX);
        err e = {0};
        temp_file_test_fail_at(calls);
        bad += try_to_keep(p, 1, &e) != ST_OK && e.code != ST_IO;
        prefix_close(p);
        temp_file_test_fail_at(0);
        p = store(UINT64_MAX);
        whole = ask(&got, p, 1) > 0 ? whole + 1 : 0;
        bad += memcmp(&cold, &got, sizeof cold) != 0;
        prefix_close(p);
        if (entries() > 0) unlink(path);
    }
    is_int(bad, 0, "%d failures: whole or not there", calls - 3);
    is_int(whole, 3, "and whole where nothing fails");
}

/* A scan that runs out of memory must not take an entry for a damaged one. */
static void check_memory(void)
{
    prefix_store *p = store(UINT64_MAX);
    keep_one(p, 1);
    prefix_close(p);
    const int before = entries();
    for (long n = 1; n <= 60; n++) {
        mem_test_fail_at(n);
        err e = {0};
        const prefix_options o = {.memory = SIZE_MAX, .chunk = U_CHUNK, .dir = dir, .disk = UINT64_MAX};
        status st = prefix_open(&p, &o, &e);
        mem_test_fail_at(0);
        if (st == ST_OK) prefix_close(p);
    }
    ok(before == 1 && entries() == 1, "an entry survives scans that run out of memory");
    unlink(path);
}

static void check_folder(void)
{
    err e = {0};
    prefix_store *p = NULL;
    const prefix_options o = {.memory = SIZE_MAX, .chunk = U_CHUNK, .dir = dir, .disk = UINT64_MAX};
    char text[160], part[160];
    snprintf(text, sizeof text, "%s/notes.txt", dir);
    snprintf(part, sizeof part, "%s/%s.123.part", dir, key);
    write_file(text, "mine", 4);
    write_file(part, "half", 4);
    prefix_close(store(UINT64_MAX));
    ok(access(text, F_OK) == 0, "a file that is no entry is left alone");
    ok(access(part, F_OK) != 0, "half an entry goes");
    unlink(text);
    chmod(dir, 0755);
    is_err(prefix_open(&p, &o, &e), &e, ST_USAGE, "expected 0700", "a folder that others can read");
    chmod(dir, 0700);
}

int main(void)
{
    err e = {0};
    snprintf(dir, sizeof dir, "/tmp/prefix.XXXXXX");
    if (!mkdtemp(dir)) abort();
    if (is_ok(parts_open(&parts, "llama31-f32-tied", "cpu", &e), &e, "model")) {
        check_restart();
        for (int last = 1; last <= 2; last++) check_limit(last);
        check_damage();
        check_failures();
        check_memory();
        check_folder();
    }
    parts_close(&parts);
    rmdir(dir);
    return tap_done();
}
