/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "cli/find_model.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"

enum {
    NAME_BYTES = 200,
    PATTERN_BYTES = 4096,
    MANIFEST_BYTES = 1 << 20,
    MANIFEST_DEPTH = 16,
    MATCHES_MAX = 8,
    REF_BYTES = 128
};

/* A name, cut into its parts, and the paths that match it. */
typedef struct {
    char owner[NAME_BYTES], name[NAME_BYTES], tag[NAME_BYTES];
    char *found[MATCHES_MAX];
    size_t n;
    err *e;
} search;

/* Returns the absolute path in a variable of the environment (NULL: none), else a path under the home folder, freed
 * with mem_free; NULL if neither is known. */
static char *join_home(const char *variable, const char *under_home)
{
    const char *own = variable ? getenv(variable) : NULL, *home = getenv("HOME");
    if (own && own[0] == '/') return mem_strdup(own);
    return home && home[0] == '/' ? path_join(home, under_home) : NULL;
}

/* Returns the program's folder in that of an XDG variable, else a path under the home folder. */
static char *xdg_folder(const char *variable, const char *under_home)
{
    const char *xdg = getenv(variable);
    return xdg && xdg[0] == '/' ? path_join(xdg, "kvasir") : join_home(NULL, under_home);
}

char *cli_cache_folder(void)
{
    return xdg_folder("XDG_CACHE_HOME", ".cache/kvasir");
}

char *cli_state_folder(void)
{
    return xdg_folder("XDG_STATE_HOME", ".local/state/kvasir");
}

static bool is_gguf(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0;
}

/* Adds a path. Skips what is no model of its own: parts of split files but the first, and image encoders. */
static status add(search *s, const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *part = strstr(base, "-of-");
    if (strncmp(base, "mmproj", 6) == 0 || s->n == MATCHES_MAX) return ST_OK;
    if (part && part - base >= 6 && strncmp(part - 6, "-00001", 6) != 0) return ST_OK;
    s->found[s->n] = mem_strdup(path);
    return s->found[s->n++] ? ST_OK : err_set(s->e, ST_NOMEM, "out of memory");
}

/* True for a file of REPOSITORY/snapshots/REVISION if another revision is the current one, refs/main. */
static bool is_outdated(const char *path)
{
    char ref[PATTERN_BYTES], current[PATTERN_BYTES];
    const char *at = strstr(path, "/snapshots/"), *revision = at + strlen("/snapshots/");
    char *text;
    size_t n;
    snprintf(ref, sizeof ref, "%.*s/refs/main", (int)(at - path), path);
    if (file_read(&text, &n, ref, REF_BYTES, NULL) != ST_OK) return false;
    n = strcspn(text, "\n");
    snprintf(current, sizeof current, "%.*s%.*s", (int)(revision - path), path, (int)n, text);
    bool other = strncmp(revision, text, n) != 0 || revision[n] != '/';
    mem_free(text);
    return other && dir_exists(current);
}

static status add_snapshot(search *s, const char *path)
{
    return is_outdated(path) ? ST_OK : add(s, path);
}

/* Adds the folder of a path. */
static status add_folder(search *s, const char *path)
{
    char folder[PATTERN_BYTES];
    if (is_outdated(path)) return ST_OK;
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = 0;
    return add(s, folder);
}

/* Adds the file that a manifest of Ollama names: MODELS/blobs/sha256-... for MODELS/manifests/... */
static status add_blob(search *s, const char *manifest)
{
    json_t *root;
    size_t i;
    json_t *layer;
    char path[PATTERN_BYTES];
    const char *models = strstr(manifest, "/manifests/");
    if (!models || json_read_object(&root, manifest, MANIFEST_BYTES, MANIFEST_DEPTH, NULL) != ST_OK) return ST_OK;
    status st = ST_OK;
    json_array_foreach(json_object_get(root, "layers"), i, layer)
    {
        const char *type = json_string_value(json_object_get(layer, "mediaType"));
        const char *digest = json_string_value(json_object_get(layer, "digest"));
        if (!type || !digest || strcmp(type, "application/vnd.ollama.image.model") != 0) continue;
        if (strncmp(digest, "sha256:", 7) != 0 || strchr(digest, '/')) continue;
        snprintf(path, sizeof path, "%.*s/blobs/sha256-%s", (int)(models - manifest), manifest, digest + 7);
        if (st == ST_OK && file_exists(path)) st = add(s, path);
    }
    json_decref(root);
    return st;
}

/* Calls `each` with the paths below a folder that match a pattern. Frees the folder. */
static status match(search *s, char *folder, const char *pattern, status (*each)(search *, const char *))
{
    char whole[PATTERN_BYTES];
    glob_t g;
    status st = ST_OK;
    if (!folder) return ST_OK;
    int n = snprintf(whole, sizeof whole, "%s/%s", folder, pattern);
    mem_free(folder);
    if (n >= (int)sizeof whole || glob(whole, 0, NULL, &g) != 0) return ST_OK;
    for (size_t i = 0; i < g.gl_pathc && st == ST_OK; i++) st = each(s, g.gl_pathv[i]);
    globfree(&g);
    return st;
}

static char *hub(void)
{
    char *own = join_home("HF_HUB_CACHE", ".cache/huggingface/hub"), *home = getenv("HF_HOME");
    if (getenv("HF_HUB_CACHE") || !home) return own;
    mem_free(own);
    return path_join(home, "hub");
}

static status search_all(search *s)
{
    char p[4 * NAME_BYTES];
    const char *owner = s->owner[0] ? s->owner : "*";
    if (!s->owner[0] && !s->tag[0]) {
        snprintf(p, sizeof p, "models/%s.gguf", s->name);
        TRY(match(s, cli_cache_folder(), p, add));
        if (s->n) return ST_OK;
    }
    if (!s->tag[0]) {
        snprintf(p, sizeof p, "models--%s--%s/snapshots/*/config.json", owner, s->name);
        TRY(match(s, hub(), p, add_folder));
        snprintf(p, sizeof p, "models--%s--%s/snapshots/*/*.gguf", owner, s->name);
        TRY(match(s, hub(), p, add_snapshot));
        snprintf(p, sizeof p, "%s/%s/*.gguf", owner, s->name);
        TRY(match(s, join_home(NULL, ".lmstudio/models"), p, add));
    }
    if (s->owner[0] && s->tag[0]) { /* a quantization of a repository */
        snprintf(p, sizeof p, "models--%s--%s/snapshots/*/*%s*.gguf", owner, s->name, s->tag);
        TRY(match(s, hub(), p, add_snapshot));
        if (s->n) return ST_OK;
    }
    snprintf(p, sizeof p, "manifests/*/%s/%s/%s", owner, s->name, s->tag[0] ? s->tag : "latest");
    return match(s, join_home("OLLAMA_MODELS", ".ollama/models"), p, add_blob);
}

/* Splits [OWNER/]NAME[:TAG]; false if it is none. */
static bool split(search *s, const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *slash = strchr(text, '/'), *name = slash ? slash + 1 : text, *colon = strchr(name, ':');
    size_t n = colon ? (size_t)(colon - name) : strlen(name), owner = slash ? (size_t)(slash - text) : 0;
    if (slash == text || n == 0 || n >= NAME_BYTES || owner >= NAME_BYTES || strlen(colon ? colon : "") >= NAME_BYTES)
        return false;
    memcpy(s->owner, text, owner);
    memcpy(s->name, name, n);
    snprintf(s->tag, sizeof s->tag, "%s", colon ? colon + 1 : "");
    const char *const parts[] = {s->owner, s->name, s->tag};
    for (int i = 0; i < 3; i++)
        if (parts[i][0] == '.' || parts[i][strspn(parts[i], letters)]) return false;
    return true;
}

static status several(const search *s, const char *name, err *e)
{
    char list[200] = "";
    size_t n = 0;
    for (size_t i = 0; i < s->n && n < sizeof list; i++)
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", path_tail(s->found[i]));
    return err_set(e, ST_USAGE, "-m %s: several models match; give a path: %s", name, list);
}

/* True if a name that nothing matches looks like a path: several folders, a folder that exists, or a GGUF file. */
static bool is_path(const search *s, const char *name)
{
    return strchr(s->name, '/') || strchr("./~", name[0]) || is_gguf(name) || (s->owner[0] && dir_exists(s->owner));
}

/* Error for a name that nothing matches: how to download such a model. */
static status missing(const search *s, const char *name, err *e)
{
    if (is_path(s, name)) return err_set(e, ST_IO, "-m %s: no such folder or file", name);
    if (s->owner[0] && s->name[0] && !s->tag[0])
        return err_set(e, ST_IO,
                       "-m %s: not found; 'hf download %s' gets it from Hugging Face, or give a folder or GGUF file",
                       name, name);
    if (s->owner[0] && s->name[0])
        return err_set(
            e, ST_IO,
            "-m %s: not found; 'hf download %s/%s --include \"*%s*\"' or 'ollama pull %s' gets it, or give a "
            "folder or GGUF file",
            name, s->owner, s->name, s->tag, name);
    if (s->name[0] && s->tag[0])
        return err_set(e, ST_IO,
                       "-m %s: not found; 'ollama pull %s' gets it from Ollama, or give a folder or GGUF file", name,
                       name);
    return err_set(e, ST_IO,
                   "-m %s: no such folder or file, and no downloaded model of this name; scripts/get_model of the "
                   "sources downloads some",
                   name);
}

/* Returns the only match in *path, NULL if there is none, and frees the others. */
static status choose(char **path, search *s, const char *name, status st, err *e)
{
    *path = NULL;
    if (st == ST_OK && s->n > 1) st = several(s, name, e);
    for (size_t i = 0; i < s->n; i++) {
        if (st == ST_OK && i == 0) *path = s->found[i];
        else mem_free(s->found[i]);
    }
    return st;
}

status cli_find_model(char **path, const char *name, err *e)
{
    search s = {.e = e};
    TRY(choose(path, &s, name, split(&s, name) ? search_all(&s) : ST_OK, e));
    return *path ? ST_OK : missing(&s, name, e);
}

static status add_file(void *s, const char *path, err *e)
{
    (void)e;
    return add(s, path);
}

status cli_find_gguf(char **path, const char *dir, err *e)
{
    search s = {.e = e};
    size_t n;
    char *config = path_join(dir, "config.json");
    bool has_config = !config || file_exists(config);
    mem_free(config);
    *path = NULL;
    return has_config ? ST_OK : choose(path, &s, dir, file_each(dir, is_gguf, add_file, &s, dir, &n, e), e);
}
