/* What probes send, stored once however many probes send it.  What differs from pod to pod, the address and
 * the container's id, is not part of it and is put in when a connection begins. */
#ifndef KUBENGINE_PROBING_TEXT_H
#define KUBENGINE_PROBING_TEXT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BUCKETS 4096

typedef struct {
    const char *at;
    uint32_t len;
} text_part;

/* HTTP: path, Host header (empty = the address), rest of the headers, host of the URL (empty = the address).
 * gRPC: the part before the :authority's text, nothing, the part after it.  Exec: the part before the message,
 * nothing, the message after the container's id. */
enum { TEXT_HEAD = 0, TEXT_NAME, TEXT_TAIL, TEXT_URL_HOST, TEXT_PARTS };

typedef struct probe_text {
    struct probe_text *next;
    uint32_t hash, uses;
    uint32_t lens[TEXT_PARTS];
    char bytes[];
} probe_text;

typedef struct {
    probe_text *buckets[TEXT_BUCKETS];
    uint32_t stored;
} probe_texts;

static inline text_part text_get(const probe_text *t, int part) {
    text_part found = {t->bytes, t->lens[part]};
    while (part-- > 0) found.at += t->lens[part];
    return found;
}

static inline int text_is(const probe_text *t, const text_part parts[TEXT_PARTS]) {
    int i;
    for (i = 0; i < TEXT_PARTS; i++) {
        text_part own = text_get(t, i);
        if (own.len != parts[i].len || memcmp(own.at, parts[i].at, own.len) != 0) return 0;
    }
    return 1;
}

/* Take a reference to the text of these parts; NULL if out of memory. */
static inline probe_text *text_take(probe_texts *all, const text_part parts[TEXT_PARTS]) {
    uint32_t hash = 2166136261u, i, j;
    size_t size = sizeof(probe_text);
    probe_text *t, **bucket;
    char *at;
    for (i = 0; i < TEXT_PARTS; i++) {
        for (j = 0; j < parts[i].len; j++) hash = (hash ^ (uint8_t)parts[i].at[j]) * 16777619u;
        hash = (hash ^ parts[i].len) * 16777619u;
        size += parts[i].len;
    }
    bucket = &all->buckets[hash % TEXT_BUCKETS];
    for (t = *bucket; t; t = t->next)
        if (t->hash == hash && text_is(t, parts)) {
            t->uses++;
            return t;
        }
    t = malloc(size);
    if (!t) return 0;
    t->next = *bucket;
    t->hash = hash;
    t->uses = 1;
    for (i = 0, at = t->bytes; i < TEXT_PARTS; at += parts[i++].len) {
        t->lens[i] = parts[i].len;
        if (parts[i].len) memcpy(at, parts[i].at, parts[i].len);
    }
    all->stored++;
    return *bucket = t;
}

static inline void text_drop(probe_texts *all, probe_text *t) {
    probe_text **link;
    if (!t || --t->uses) return;
    for (link = &all->buckets[t->hash % TEXT_BUCKETS]; *link != t;) link = &(*link)->next;
    *link = t->next;
    all->stored--;
    free(t);
}

#endif
