"""Ordinary pods' sums, class and flags, straight from the objects' slots. See `_requests_py.py`."""

from cpython.dict cimport PyDict_Check, PyDict_GetItem, PyDict_Next, PyDict_SetItem
from cpython.list cimport PyList_Check, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLong, PyLong_AsLongLong
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport INT32_MAX, INT32_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memset


cdef extern from "../pyobject_slots.h":
    ctypedef struct kb_slot:
        pass
    ctypedef long long kb_nano  # really 128 bits wide
    PyObject *kb_slot_get(object, kb_slot *slot, object name)
    int kb_nano_of(object number, kb_nano *nano)
    int64_t kb_rounded_up(kb_nano nano, int64_t unit)

cdef enum:
    MOST = 16  # resources of an ordinary pod's table
    CPU = 0
    MEMORY = 1
    STORAGE = 2
    LIVE = 1
    CRITICAL = 2
    HAS_PRIORITY = 4
    STATIC = 8
    MIRROR = 16
    PROTECTED = 32
    CPU_LIMITED = 64
    MEMORY_LIMITED = 128

cdef int64_t MILLI = 1000000
cdef int64_t BILLION = 1000000000
cdef int64_t CRITICAL_PRIORITY = 2000000000

cdef object METADATA = "metadata"
cdef object SPEC = "spec"
cdef object STATUS = "status"
cdef object UID = "uid"
cdef object ANNOTATIONS = "annotations"
cdef object CREATION = "creation_timestamp"
cdef object QOS_CLASS = "qos_class"
cdef object CONTAINERS = "containers"
cdef object INIT_CONTAINERS = "init_containers"
cdef object OVERHEAD = "overhead"
cdef object PRIORITY = "priority"
cdef object RESOURCES = "resources"
cdef object REQUESTS = "requests"
cdef object LIMITS = "limits"
cdef object RESTART_POLICY = "restart_policy"
cdef object NANO = "nano"

SOURCE_ANNOTATION = "kubernetes.io/config.source"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
DO_NOT_PREEMPT_ANNOTATION = "kubengine.dev/do-not-preempt"
cdef object SOURCE = SOURCE_ANNOTATION
cdef object MIRRORED = MIRROR_ANNOTATION
cdef object PROTECTION = DO_NOT_PREEMPT_ANNOTATION
cdef dict CLASSES = {"BestEffort": 0, "Burstable": 1, "Guaranteed": 2}

cdef kb_slot metadata_slot, spec_slot, status_slot, uid_slot, annotations_slot, creation_slot, class_slot
cdef kb_slot containers_slot, inits_slot, overhead_slot, priority_slot, pod_resources_slot, resources_slot
cdef kb_slot requests_slot, limits_slot, restart_slot, nano_slot


cdef struct sums:
    kb_nano together[MOST]    # app containers and sidecars
    kb_nano sidecars[MOST]
    kb_nano peak[MOST]        # the hungriest moment of the init phase
    kb_nano overhead[MOST]
    int present               # one bit for each resource that is named


cdef struct measured:
    sums requests
    sums limits
    kb_nano requested[2]      # cpu and memory over every container, as QoS counts them
    kb_nano limited[2]
    int every_cpu, every_memory


cdef inline int add_list(PyObject *amounts, kb_nano *into, int *present, dict ids) except -1:
    """Add a resource list. Returns 0 if it is not ordinary."""
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    cdef PyObject *id
    cdef PyObject *number
    cdef Py_ssize_t at = 0
    cdef long place
    cdef kb_nano nano
    if not PyDict_Check(<object>amounts):
        return 0
    while PyDict_Next(<object>amounts, &at, &key, &value):
        number = kb_slot_get(<object>value, &nano_slot, NANO)
        if number == NULL or not kb_nano_of(<object>number, &nano):
            return 0
        id = PyDict_GetItem(ids, <object>key)
        if id == NULL:
            return 0
        place = PyLong_AsLong(<object>id)
        if place < 0:
            continue
        if place >= MOST:
            return 0
        into[place] += nano
        present[0] |= 1 << place
    return 1


cdef inline int raise_to(kb_nano *into, const kb_nano *amounts, int resources) noexcept:
    cdef int i
    for i in range(resources):
        if amounts[i] > into[i]:
            into[i] = amounts[i]
    return 0


cdef int add_container(object container, measured *m, dict ids, int resources, bint init) except -1:
    """Count one container. Returns 0 if it is not ordinary."""
    cdef PyObject *resource_field = kb_slot_get(container, &resources_slot, RESOURCES)
    cdef PyObject *restart = NULL
    cdef PyObject *amounts
    cdef kb_nano own[2][MOST]
    cdef sums *kinds[2]
    cdef sums *kind
    cdef bint sidecar = False
    cdef int which, i, bit
    if resource_field == NULL:
        return 0
    memset(own, 0, sizeof(own))
    kinds[0], kinds[1] = &m.requests, &m.limits
    if <object>resource_field is not None:
        amounts = kb_slot_get(<object>resource_field, &requests_slot, REQUESTS)
        if amounts == NULL:
            return 0
        if <object>amounts is not None and not add_list(amounts, own[0], &m.requests.present, ids):
            return 0
        amounts = kb_slot_get(<object>resource_field, &limits_slot, LIMITS)
        if amounts == NULL:
            return 0
        if <object>amounts is not None and not add_list(amounts, own[1], &m.limits.present, ids):
            return 0
    for bit in range(2):
        m.requested[bit] += own[0][bit]
        m.limited[bit] += own[1][bit]
    m.every_cpu &= own[1][CPU] > 0
    m.every_memory &= own[1][MEMORY] > 0
    if init:
        restart = kb_slot_get(container, &restart_slot, RESTART_POLICY)
        if restart == NULL:
            return 0
        sidecar = <object>restart == "Always"
    for which in range(2):
        kind = kinds[which]
        if not init:
            for i in range(resources):
                kind.together[i] += own[which][i]
            continue
        for i in range(resources):
            if sidecar:
                kind.together[i] += own[which][i]
                kind.sidecars[i] += own[which][i]
                own[which][i] = kind.sidecars[i]
            else:
                own[which][i] += kind.sidecars[i]
        raise_to(kind.peak, own[which], resources)
    return 1


cdef int measure(object spec, measured *m, dict ids, int resources) except -1:
    """Compute all sums of a pod. Returns 0 if it is not ordinary."""
    cdef PyObject *field
    cdef Py_ssize_t i
    cdef bint none
    memset(m, 0, sizeof(measured))
    m.every_cpu = m.every_memory = 1
    field = kb_slot_get(spec, &pod_resources_slot, RESOURCES)
    if field == NULL or <object>field is not None:
        return 0
    field = kb_slot_get(spec, &containers_slot, CONTAINERS)
    if field == NULL or not PyList_Check(<object>field):
        return 0
    for i in range(PyList_GET_SIZE(<object>field)):
        if not add_container(<object>PyList_GET_ITEM(<object>field, i), m, ids, resources, False):
            return 0
    none = PyList_GET_SIZE(<object>field) == 0
    field = kb_slot_get(spec, &inits_slot, INIT_CONTAINERS)
    if field == NULL:
        return 0
    if <object>field is None:
        if none:
            m.every_cpu = m.every_memory = 0
    else:
        if not PyList_Check(<object>field) or PyList_GET_SIZE(<object>field) == 0:
            return 0
        for i in range(PyList_GET_SIZE(<object>field)):
            if not add_container(<object>PyList_GET_ITEM(<object>field, i), m, ids, resources, True):
                return 0
    field = kb_slot_get(spec, &overhead_slot, OVERHEAD)
    if field == NULL:
        return 0
    if <object>field is not None:
        return add_list(field, m.requests.overhead, &m.requests.present, ids)
    return 1


cdef inline int64_t unit(int resource) noexcept:
    return MILLI if resource == CPU else BILLION


cdef inline kb_nano hungriest(const sums *kind, int i) noexcept:
    return kind.peak[i] if kind.peak[i] > kind.together[i] else kind.together[i]


cdef inline int64_t as_requested(const measured *m, int i) noexcept:
    return kb_rounded_up(hungriest(&m.requests, i) + m.requests.overhead[i], unit(i))


cdef inline kb_nano as_ranked(const measured *m, int i) noexcept:
    cdef kb_nano total = hungriest(&m.requests, i)
    return total + m.requests.overhead[i] if total else total


cdef inline int64_t as_limited(const measured *m, int i) noexcept:
    cdef kb_nano total = hungriest(&m.limits, i)
    return kb_rounded_up(total + m.requests.overhead[i] if total else total, unit(i))


cdef inline int qos_of(const measured *m) noexcept:
    cdef bint any_amount = (m.requested[0] > 0 or m.requested[1] > 0 or m.limited[0] > 0
                            or m.limited[1] > 0)
    if not any_amount:
        return 0
    if (m.every_cpu and m.every_memory and m.requested[0] == m.limited[0]
            and m.requested[1] == m.limited[1]):
        return 2
    return 1


cdef class Filler:
    """The columns of a table as typed views; created again when they are replaced."""
    cdef int32_t[::1] node
    cdef uint8_t[::1] qos
    cdef uint8_t[::1] flags
    cdef int32_t[::1] priority
    cdef double[::1] creation
    cdef int64_t[:, ::1] requests
    cdef int64_t[:, ::1] ranking
    cdef int64_t[:, ::1] limits

    def __cinit__(self, columns):
        self.node = columns.node
        self.qos = columns.qos
        self.flags = columns.flags
        self.priority = columns.priority
        self.creation = columns.creation
        self.requests = columns.requests
        self.ranking = columns.ranking
        self.limits = columns.limits

    cdef bint write(self, object pod, object metadata, Py_ssize_t row, int32_t node, dict ids) except -1:
        """Fill a row. Returns whether it was filled; if not, the caller handles the pod."""
        cdef PyObject *spec = kb_slot_get(pod, &spec_slot, SPEC)
        cdef PyObject *status = kb_slot_get(pod, &status_slot, STATUS)
        cdef PyObject *field
        cdef PyObject *value
        cdef measured m
        cdef int resources = <int>self.ranking.shape[0], i, code
        cdef int64_t requested[MOST]
        cdef int64_t ranked[MOST]
        cdef int64_t limited[3]
        cdef int64_t priority = 0
        cdef uint8_t flags = LIVE
        cdef kb_nano exact
        cdef double created = 0.0
        if spec == NULL or status == NULL or resources > MOST:
            return 0
        if not measure(<object>spec, &m, ids, resources):
            return 0
        if (m.requests.present | m.limits.present) >> resources:
            return 0
        for i in range(resources):
            requested[i] = as_requested(&m, i)
            exact = as_ranked(&m, i)
            ranked[i] = kb_rounded_up(exact, unit(i))
            if requested[i] < 0 or ranked[i] < 0:
                return 0
            if (i == MEMORY or i == STORAGE) and <kb_nano>ranked[i] * BILLION != exact:
                return 0
        for i in range(3):
            limited[i] = as_limited(&m, i)
            if limited[i] < 0:
                return 0
        field = kb_slot_get(<object>spec, &priority_slot, PRIORITY)
        if field == NULL:
            return 0
        if <object>field is not None:
            priority = PyLong_AsLongLong(<object>field)
            if not INT32_MIN <= priority <= INT32_MAX:
                return 0
            flags |= HAS_PRIORITY
            if priority >= CRITICAL_PRIORITY:
                flags |= CRITICAL
        field = kb_slot_get(metadata, &annotations_slot, ANNOTATIONS)
        if field == NULL:
            return 0
        if <object>field is not None:
            value = PyDict_GetItem(<object>field, SOURCE)
            if value != NULL and <object>value != "api":
                flags |= STATIC | CRITICAL
            if PyDict_GetItem(<object>field, MIRRORED) != NULL:
                flags |= MIRROR | CRITICAL
            value = PyDict_GetItem(<object>field, PROTECTION)
            if value != NULL and <object>value == "true":
                flags |= PROTECTED
        flags |= (CPU_LIMITED if m.every_cpu else 0) | (MEMORY_LIMITED if m.every_memory else 0)
        field = kb_slot_get(<object>status, &class_slot, QOS_CLASS)
        if field == NULL:
            return 0
        code = qos_of(&m)
        if <object>field:
            value = PyDict_GetItem(CLASSES, <object>field)
            if value == NULL:
                return 0
            code = <int>PyLong_AsLong(<object>value)
        field = kb_slot_get(metadata, &creation_slot, CREATION)
        if field == NULL:
            return 0
        if <object>field is not None:
            created = (<object>field).timestamp()
        self.node[row] = node
        self.qos[row] = <uint8_t>code
        self.flags[row] = flags
        self.priority[row] = <int32_t>priority
        self.creation[row] = created
        for i in range(resources):
            self.requests[i, row] = requested[i]
            self.ranking[i, row] = ranked[i]
        for i in range(3):
            self.limits[i, row] = limited[i]
        return 1

    def fill(self, list pods, Py_ssize_t start, Py_ssize_t row, int32_t node, dict ids, dict row_of):
        cdef Py_ssize_t count = 0, end = len(pods)
        cdef PyObject *metadata
        cdef PyObject *uid
        cdef object pod
        while start + count < end and row + count < self.flags.shape[0]:
            pod = pods[start + count]
            metadata = kb_slot_get(pod, &metadata_slot, METADATA)
            if metadata == NULL:
                break
            uid = kb_slot_get(<object>metadata, &uid_slot, UID)
            if uid == NULL or not PyUnicode_Check(<object>uid) or not <object>uid:
                break
            if PyDict_GetItem(row_of, <object>uid) != NULL:
                break
            if not self.write(pod, <object>metadata, row + count, node, ids):
                break
            PyDict_SetItem(row_of, <object>uid, row + count)
            count += 1
        return count

    def clear(self, Py_ssize_t row):
        cdef Py_ssize_t i
        if row < 0 or row >= self.flags.shape[0]:
            raise IndexError(f"row {row} of {self.flags.shape[0]}")
        self.node[row] = self.qos[row] = self.flags[row] = self.priority[row] = 0
        self.creation[row] = 0.0
        for i in range(self.requests.shape[0]):
            self.requests[i, row] = self.ranking[i, row] = 0
        for i in range(self.limits.shape[0]):
            self.limits[i, row] = 0


def requests(pod, dict ids, list names):
    cdef PyObject *spec = kb_slot_get(pod, &spec_slot, SPEC)
    cdef measured m
    cdef int resources = <int>len(names), i
    cdef int64_t amount
    cdef dict answer
    if spec == NULL or resources > MOST or not measure(<object>spec, &m, ids, resources):
        return None
    for i in range(3):
        if as_limited(&m, i) < 0:
            return None
    answer = {}
    for i in range(resources):
        if m.requests.present >> i & 1:
            amount = as_requested(&m, i)
            if amount < 0:
                return None
            answer[names[i]] = amount
    return answer


cdef dict NATIVE = {"cpu": CPU, "memory": MEMORY, "ephemeral-storage": STORAGE}
cdef tuple NAMES = ("BestEffort", "Burstable", "Guaranteed")


def amounts(pod):
    cdef PyObject *spec = kb_slot_get(pod, &spec_slot, SPEC)
    cdef PyObject *status = kb_slot_get(pod, &status_slot, STATUS)
    cdef PyObject *field
    cdef measured m
    cdef int64_t found[4]
    cdef int i
    if spec == NULL or status == NULL or not measure(<object>spec, &m, NATIVE, 3):
        return None
    field = kb_slot_get(<object>spec, &inits_slot, INIT_CONTAINERS)
    if <object>field is not None and not (m.every_cpu and m.every_memory):
        return None
    for i in range(2):
        found[i] = as_requested(&m, i)
        found[2 + i] = as_limited(&m, i)
        if found[i] < 0 or found[2 + i] < 0:
            return None
    field = kb_slot_get(<object>status, &class_slot, QOS_CLASS)
    if field == NULL:
        return None
    name = <object>field or NAMES[qos_of(&m)]
    return name, bool(m.every_cpu), bool(m.every_memory), found[0], found[1], found[2], found[3]
