"""Choice of exclusive CPUs, compiled. The rule is in `_cpu_assignment_py.py`.

A set of CPUs is an array of `words` 64-bit words. Members of a level are in order of id, so that an index
replaces the id wherever ids are compared. A choice allocates one workspace, whatever the machine's size.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from engine._fast.pinning._even_split cimport MOST_TRIED, fullest_split, most_even_split, split

from engine._fast.pinning._cpu_assignment_py import EXHAUSTIVE_NODES as _EXHAUSTIVE_NODES

cdef extern from *:
    int __builtin_popcountll(unsigned long long x) nogil
    int __builtin_ctzll(unsigned long long x) nogil
    int __builtin_clzll(unsigned long long x) nogil

cdef enum:
    CORES = 0
    CACHES = 1
    SOCKETS = 2
    NODES = 3
    LEVELS = 4

cdef int EXHAUSTIVE = _EXHAUSTIVE_NODES
assert EXHAUSTIVE <= MOST_TRIED


cdef struct level:
    int members
    uint64_t *sets     # [members, words]
    int *sizes         # [members]: CPUs of each
    int *starts[2]     # [nodes or sockets + 1]: where the members in a region begin in `within`
    int *within[2]     # for the regions of NODES and of SOCKETS: indices of the members with CPUs there


cdef struct machine:
    int words, cpus, per_core, per_cache, per_socket, nodes_first
    level levels[LEVELS]


cdef struct taking:
    const machine *layout
    int64_t needed
    uint64_t *free
    uint64_t *taken
    uint64_t *scratch
    int *counts       # [largest level]: free CPUs of each member that is being sorted
    int *found        # the members themselves
    int *buckets      # [cpus + 2]
    int *outer        # lists of members in order, each of which has the length of the largest level
    int *regions
    int *inner
    char *seen


cdef inline int size_of(const uint64_t *cpus, int words) noexcept nogil:
    cdef int i, total = 0
    for i in range(words):
        if cpus[i]:
            total += __builtin_popcountll(cpus[i])
    return total


cdef inline bint meet(const uint64_t *a, const uint64_t *b, int words) noexcept nogil:
    cdef int i
    for i in range(words):
        if a[i] & b[i]:
            return True
    return False


cdef inline void take(taking *t, const uint64_t *cpus) noexcept nogil:
    cdef int i
    for i in range(t.layout.words):
        t.taken[i] |= cpus[i]
        t.free[i] &= ~cpus[i]
    t.needed -= size_of(cpus, t.layout.words)


cdef void take_whole(taking *t, int which, const int *members, int count, int only_size) noexcept nogil:
    """Take each member that is free and not larger than the need; of `only_size` CPUs, unless it is 0."""
    cdef const level *of = &t.layout.levels[which]
    cdef int words = t.layout.words, i, j
    cdef const uint64_t *cpus
    for i in range(count):
        if of.sizes[members[i]] > t.needed or (only_size and of.sizes[members[i]] != only_size):
            continue
        cpus = &of.sets[members[i] * words]
        for j in range(words):
            if cpus[j] & ~t.free[j]:
                break
        else:
            take(t, cpus)


cdef int sort_in(taking *t, int which, int region_level, int region, int *out) noexcept nogil:
    """List members with a free CPU in a region (-1: everywhere), those with the fewest free CPUs first.

    Skips members in `seen`, and adds the found ones to it. Returns the number of members written.
    """
    cdef const level *of = &t.layout.levels[which]
    cdef int words = t.layout.words, first = 0, last = of.members, side = region_level == SOCKETS
    cdef const uint64_t *cpus
    cdef const uint64_t *place = NULL
    cdef int i, j, one, free_cpus, most = 0, found = 0, at
    cdef uint64_t both
    cdef bint inside
    if region >= 0:
        place = &t.layout.levels[region_level].sets[region * words]
        first, last = of.starts[side][region], of.starts[side][region + 1]
    for i in range(first, last):
        one = i if region < 0 else of.within[side][i]
        if t.seen[one]:
            continue
        cpus = &of.sets[one * words]
        free_cpus, inside = 0, False
        for j in range(words):
            both = cpus[j] & t.free[j]
            if both:
                free_cpus += __builtin_popcountll(both)
                inside = inside or place == NULL or (both & place[j]) != 0
        if inside:
            t.seen[one] = 1
            t.found[found] = one
            t.counts[found] = free_cpus
            most = max(most, free_cpus)
            found += 1
    memset(t.buckets, 0, (most + 2) * sizeof(int))
    for i in range(found):
        t.buckets[t.counts[i] + 1] += 1
    for i in range(1, most + 1):
        t.buckets[i] += t.buckets[i - 1]
    for i in range(found):
        at = t.buckets[t.counts[i]]
        t.buckets[t.counts[i]] += 1
        out[at] = t.found[i]
    return found


cdef int sort_all(taking *t, int which, int *out) noexcept nogil:
    memset(t.seen, 0, t.layout.levels[which].members)
    return sort_in(t, which, NODES, -1, out)


cdef int sort_by(
    taking *t, int which, int region_level, const int *regions, int count, int *out
) noexcept nogil:
    """Members region after region, each once."""
    cdef int i, written = 0
    memset(t.seen, 0, t.layout.levels[which].members)
    for i in range(count):
        written += sort_in(t, which, region_level, regions[i], out + written)
    return written


cdef int sort_nodes(taking *t, int *out) noexcept nogil:
    if t.layout.nodes_first:
        return sort_all(t, NODES, out)
    return sort_by(t, NODES, SOCKETS, t.outer, sort_all(t, SOCKETS, t.outer), out)


cdef int sort_sockets(taking *t, int *out) noexcept nogil:
    if not t.layout.nodes_first:
        return sort_all(t, SOCKETS, out)
    return sort_by(t, SOCKETS, NODES, t.outer, sort_all(t, NODES, t.outer), out)


cdef int sort_cores(taking *t, int *out) noexcept nogil:
    if t.layout.nodes_first:
        return sort_by(t, CORES, SOCKETS, t.regions, sort_sockets(t, t.regions), out)
    return sort_by(t, CORES, NODES, t.regions, sort_nodes(t, t.regions), out)


cdef int sort_caches(taking *t, int *out) noexcept nogil:
    return sort_by(t, CACHES, NODES, t.regions, sort_nodes(t, t.regions), out)


cdef void take_part(taking *t, const uint64_t *cache) noexcept nogil:
    """Take what is needed from one cache, in order of core, if that many CPUs are free there."""
    cdef const level *cores = &t.layout.levels[CORES]
    cdef int words = t.layout.words, i, j, found
    cdef int64_t wanted = (t.needed + t.layout.per_core - 1) // t.layout.per_core
    cdef const uint64_t *cpus
    cdef bint inside
    memset(t.scratch, 0, words * sizeof(uint64_t))
    for i in range(cores.members):
        if not wanted:
            break
        cpus = &cores.sets[i * words]
        inside = False
        for j in range(words):
            inside = inside or (cpus[j] & cache[j] & t.free[j]) != 0
        if inside:
            wanted -= 1
            for j in range(words):
                t.scratch[j] |= cpus[j] & t.free[j]
    found = size_of(t.scratch, words)
    if t.needed % 2 and t.layout.per_core > 1 and found > t.needed:
        for j in range(words - 1, -1, -1):
            if t.scratch[j]:
                t.scratch[j] ^= <uint64_t>1 << (63 - __builtin_clzll(t.scratch[j]))
                found -= 1
                break
    if found == t.needed:
        take(t, t.scratch)


cdef void take_caches(taking *t) noexcept nogil:
    cdef const level *caches = &t.layout.levels[CACHES]
    cdef int count = sort_caches(t, t.inner), i
    if t.needed >= t.layout.per_cache:
        take_whole(t, CACHES, t.inner, count, 0)
    for i in range(count):
        if not t.needed:
            return
        take_part(t, &caches.sets[t.inner[i] * t.layout.words])


cdef void take_single(taking *t, bint spread) noexcept nogil:
    cdef int which = SOCKETS if spread else CORES
    cdef int words = t.layout.words, i, j
    cdef int count = sort_sockets(t, t.inner) if spread else sort_cores(t, t.inner)
    cdef const uint64_t *cpus
    cdef uint64_t left, lowest
    for i in range(count):
        cpus = &t.layout.levels[which].sets[t.inner[i] * words]
        for j in range(words):
            left = cpus[j] & t.free[j]
            while left:
                if not t.needed:
                    return
                lowest = left & (~left + 1)
                t.taken[j] |= lowest
                t.free[j] ^= lowest
                t.needed -= 1
                left ^= lowest


cdef void choose_packed(taking *t, bint spread, bint whole_caches) noexcept nogil:
    cdef int step, count
    for step in range(2):
        if not t.needed:
            return
        if (step == 0) == t.layout.nodes_first:
            count = sort_nodes(t, t.inner)
            take_whole(t, NODES, t.inner, count, 0)
        else:
            count = sort_sockets(t, t.inner)
            take_whole(t, SOCKETS, t.inner, count, t.layout.per_socket)
    if whole_caches and t.needed:
        take_caches(t)
    if not spread and t.needed:
        count = sort_cores(t, t.inner)
        take_whole(t, CORES, t.inner, count, t.layout.per_core)
    if t.needed:
        take_single(t, spread)


cdef int free_in(taking *t, int node, uint64_t *out) noexcept nogil:
    cdef const uint64_t *cpus = &t.layout.levels[NODES].sets[node * t.layout.words]
    cdef int i
    for i in range(t.layout.words):
        out[i] = cpus[i] & t.free[i]
    return size_of(out, t.layout.words)


cdef void take_from(taking *t, taking *part, int64_t count, bint spread) noexcept nogil:
    """Take `count` CPUs of `part.free`, packed."""
    memset(part.taken, 0, t.layout.words * sizeof(uint64_t))
    part.needed = count
    choose_packed(part, spread, False)
    take(t, part.taken)


cdef bint choose_distributed(taking *t, taking *part, split *s, int64_t group, bint spread) noexcept nogil:
    """Try an even split; return whether it was found and taken."""
    cdef int nodes = sort_nodes(t, s.nodes), size, i
    cdef int64_t count = t.needed, groups = t.needed // group
    cdef int64_t groups_of_machine = (t.layout.cpus + group - 1) // group
    cdef int64_t members = t.layout.levels[NODES].members
    cdef int64_t in_node = (groups_of_machine + members - 1) // members
    cdef int64_t fewest = (groups + in_node - 1) // in_node, share, rest
    cdef bint found
    for i in range(nodes):
        s.free_cpus[s.nodes[i]] = free_in(t, s.nodes[i], part.free)
    if fewest > nodes:
        return False
    for size in range(<int>fewest, <int>min(groups, <int64_t>nodes) + 1):
        share = groups // size * group
        rest = count - share * size
        if nodes > EXHAUSTIVE:
            found = fullest_split(s, nodes, size, share, rest, group)
        else:
            found = most_even_split(s, nodes, size, share, rest, group)
        if not found:
            continue
        for i in range(s.chosen_count):
            free_in(t, s.chosen[i], part.free)
            take_from(t, part, share, spread)
        while t.needed:
            for i in range(s.extra_count):
                if t.needed and free_in(t, s.extra[i], part.free) >= group:
                    take_from(t, part, group, spread)
        return True
    return False


cdef class Layout:
    cdef readonly object cores, caches, sockets, nodes
    cdef readonly object cpus
    cdef readonly int per_core, per_cache, per_socket
    cdef machine compiled
    cdef int longest  # members of the largest level

    def __init__(self, cores, caches, sockets, nodes):
        cdef int which
        if self.compiled.words:
            raise TypeError("a layout is made once")
        self.cores, self.caches, self.sockets, self.nodes = cores, caches, sockets, nodes
        levels = (cores, caches, sockets, nodes)
        self.cpus = 0
        for members in cores.values():
            self.cpus |= members
        if not self.cpus or not all(levels):
            raise ValueError("a layout needs CPUs, and members of each level")
        everything = 0
        for one in levels:
            for members in one.values():
                everything |= members
        self.compiled.words = (everything.bit_length() + 63) // 64
        self.compiled.cpus = self.cpus.bit_count()
        self.per_core = self.compiled.per_core = self.compiled.cpus // <int>len(cores)
        self.per_cache = self.compiled.per_cache = self.compiled.cpus // <int>len(caches)
        self.per_socket = self.compiled.per_socket = self.compiled.cpus // <int>len(sockets)
        self.compiled.nodes_first = len(sockets) >= len(nodes)
        for which in range(LEVELS):
            self._fill(&self.compiled.levels[which], levels[which])
        for which in range(LEVELS):
            self._connect(&self.compiled.levels[which])

    def __dealloc__(self):
        cdef int which, side
        for which in range(LEVELS):
            free(self.compiled.levels[which].sets)
            free(self.compiled.levels[which].sizes)
            for side in range(2):
                free(self.compiled.levels[which].starts[side])
                free(self.compiled.levels[which].within[side])

    cdef int _fill(self, level *of, members) except -1:
        cdef int words = self.compiled.words, i = 0
        of.members = <int>len(members)
        self.longest = max(self.longest, of.members)
        of.sets = <uint64_t *>calloc(of.members * words, sizeof(uint64_t))
        of.sizes = <int *>calloc(of.members, sizeof(int))
        if of.sets == NULL or of.sizes == NULL:
            raise MemoryError
        for name in sorted(members):
            put(members[name], &of.sets[i * words], words)
            of.sizes[i] = size_of(&of.sets[i * words], words)
            i += 1
        return 0

    cdef int _connect(self, level *of) except -1:
        """List the members that have CPUs in each node and in each socket."""
        cdef int words = self.compiled.words, side, region, one, count
        cdef level *regions
        for side in range(2):
            regions = &self.compiled.levels[SOCKETS if side else NODES]
            of.starts[side] = <int *>calloc(regions.members + 1, sizeof(int))
            of.within[side] = <int *>malloc((<size_t>regions.members * of.members + 1) * sizeof(int))
            if of.starts[side] == NULL or of.within[side] == NULL:
                raise MemoryError
            count = 0
            for region in range(regions.members):
                for one in range(of.members):
                    if meet(&regions.sets[region * words], &of.sets[one * words], words):
                        of.within[side][count] = one
                        count += 1
                of.starts[side][region + 1] = count
        return 0


cdef int put(object cpus, uint64_t *out, int words) except -1:
    """Write a set, an integer, as words; raises OverflowError for a CPU beyond them."""
    cdef bytes text = cpus.to_bytes(8 * words, "little")
    memcpy(out, <const char *>text, 8 * words)
    return 0


cdef object number(const uint64_t *cpus, int words):
    return int.from_bytes((<const char *>cpus)[:8 * words], "little")


cdef size_t bytes_of(Layout layout) noexcept:
    return (3 * layout.compiled.words * sizeof(uint64_t)
            + (5 * <size_t>layout.longest + layout.compiled.cpus + 2) * sizeof(int)
            + layout.longest + sizeof(uint64_t)) // sizeof(uint64_t) * sizeof(uint64_t)


cdef void arrange(taking *t, Layout layout, char *memory) noexcept:
    """Divide one zeroed block of memory into the arrays that a choice needs."""
    cdef int words = layout.compiled.words, longest = layout.longest
    t.layout = &layout.compiled
    t.free = <uint64_t *>memory
    t.taken = t.free + words
    t.scratch = t.taken + words
    t.counts = <int *>(t.scratch + words)
    t.found = t.counts + longest
    t.outer = t.found + longest
    t.regions = t.outer + longest
    t.inner = t.regions + longest
    t.buckets = t.inner + longest
    t.seen = <char *>(t.buckets + layout.compiled.cpus + 2)


def take_packed(
    Layout layout not None, available, int64_t count, *, bint spread=False, bint whole_caches=False
):
    cdef taking t
    cdef char *memory = <char *>calloc(bytes_of(layout), 1)
    if memory == NULL:
        raise MemoryError
    try:
        arrange(&t, layout, memory)
        put(available & layout.cpus, t.free, layout.compiled.words)
        t.needed = count
        choose_packed(&t, spread, whole_caches)
        return number(t.taken, layout.compiled.words)
    finally:
        free(memory)


def take_distributed(Layout layout not None, available, int64_t count, int64_t group, *, bint spread=False):
    if group < 1:
        raise ValueError(f"group size {group}: expected 1 or more")
    if not count or count % group:
        return take_packed(layout, available, count, spread=spread)
    cdef taking t, part
    cdef split s
    cdef int nodes = layout.compiled.levels[NODES].members
    cdef size_t each = bytes_of(layout)
    cdef char *memory = <char *>calloc(2 * each + 6 * <size_t>nodes * sizeof(int), 1)
    if memory == NULL:
        raise MemoryError
    try:
        arrange(&t, layout, memory)
        arrange(&part, layout, memory + each)
        s.nodes = <int *>(memory + 2 * each)
        s.free_cpus = s.nodes + nodes
        s.left = s.free_cpus + nodes
        s.remaining = s.left + nodes
        s.chosen = s.remaining + nodes
        s.extra = s.chosen + nodes
        s.chosen_count = s.extra_count = 0
        put(available & layout.cpus, t.free, layout.compiled.words)
        t.needed = count
        if not choose_distributed(&t, &part, &s, group, spread):
            choose_packed(&t, spread, False)
        return number(t.taken, layout.compiled.words)
    finally:
        free(memory)
