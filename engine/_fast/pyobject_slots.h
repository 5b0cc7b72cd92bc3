/* Reads a slot of a Python object (a `__slots__` class or a msgspec Struct) directly from memory; its offset is
   looked up once per type and field. */
#ifndef KUBENGINE_SLOT_MEMBER_H
#define KUBENGINE_SLOT_MEMBER_H

#include <Python.h>
#include <structmember.h>

typedef struct {
    PyTypeObject *type; /* a counted reference: the type outlives the entry */
    Py_ssize_t offset;
} kb_slot;

/* A borrowed reference; NULL without an exception if the attribute is not a filled slot. */
static PyObject *kb_slot_find(PyObject *object, kb_slot *slot, PyObject *name) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject *found = _PyType_Lookup(type, name);
    if (found == NULL || !Py_IS_TYPE(found, &PyMemberDescr_Type)) return NULL;
    if (((PyMemberDescrObject *)found)->d_member->type != T_OBJECT_EX) return NULL;
    Py_INCREF(type);
    Py_XDECREF(slot->type);
    slot->type = type;
    slot->offset = ((PyMemberDescrObject *)found)->d_member->offset;
    return *(PyObject **)((char *)object + slot->offset);
}

static inline PyObject *kb_slot_get(PyObject *object, kb_slot *slot, PyObject *name) {
    if (Py_TYPE(object) == slot->type) return *(PyObject **)((char *)object + slot->offset);
    return kb_slot_find(object, slot, name);
}

/* Amounts are exact: billionths of a unit, in 128 bits. */
typedef __int128 kb_nano;

/* Returns 0 for negative amounts and for 2^63 units or more. */
static int kb_nano_of(PyObject *number, kb_nano *nano) {
    static PyObject *billion = NULL;
    PyObject *whole, *rest;
    int overflow, fine = 0;
    long long small;
    if (!PyLong_CheckExact(number)) return 0;
    small = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (!overflow) {
        *nano = small;
        return small >= 0;
    }
    if (overflow < 0) return 0;
    if (billion == NULL) billion = PyLong_FromLong(1000000000L);
    whole = PyNumber_FloorDivide(number, billion);
    rest = PyNumber_Remainder(number, billion);
    if (whole != NULL && rest != NULL) {
        small = PyLong_AsLongLongAndOverflow(whole, &overflow);
        fine = !overflow;
        *nano = (kb_nano)small * 1000000000 + PyLong_AsLongLong(rest);
    }
    PyErr_Clear();
    Py_XDECREF(whole);
    Py_XDECREF(rest);
    return fine;
}

/* Rounded up to `unit` billionths; -1 if that does not fit. */
static inline int64_t kb_rounded_up(kb_nano nano, int64_t unit) {
    if (nano <= INT64_MAX - 1000000000) return ((int64_t)nano + unit - 1) / unit;
    nano = (nano + unit - 1) / unit;
    return nano > INT64_MAX ? -1 : (int64_t)nano;
}

#endif
