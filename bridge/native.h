/*
 * Shared by the C files of the extension `bridge._native`. It uses the limited API of Python 3.11 (PEP 384), so one
 * build works with every later Python.
 */
#ifndef WAYPOST_NATIVE_H
#define WAYPOST_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* An entry of a table of functions with counted arguments. */
#define FUNCTION(name, function) {name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, NULL}

/*
 * Check the arguments of `function`: as many as `kinds` has letters, each of its type. `l` list, `d` dict, `t` tuple,
 * `b` bytes, `s` str, `i` int, `f` float, `c` a class of tuples, `O` any object. Raises TypeError; false then.
 */
bool takes(const char *function, PyObject *const *arguments, Py_ssize_t count, const char *kinds);

/* Return a new reference to this attribute of `object`; NULL with an error, or when `object` is NULL. */
PyObject *field(PyObject *object, PyObject *name);

/* Return a new reference to the same object. */
static inline PyObject *keep(PyObject *object)
{
    Py_XINCREF(object);
    return object;
}

/* Return a new reference to the item of a list; NULL with an error when the list is shorter. */
static inline PyObject *listed(PyObject *list, Py_ssize_t place)
{
    return keep(PyList_GetItem(list, place));
}

/* Append a new reference, which may be NULL with an error, and release it. Return false on an error. */
static inline bool append(PyObject *list, PyObject *item)
{
    bool done = item && !PyList_Append(list, item);
    Py_XDECREF(item);
    return done;
}

/* Append to a list that the caller owns. On an error release the list and set it to NULL. */
static inline void append_or_drop(PyObject **list, PyObject *item)
{
    if (!append(*list, item)) {
        Py_XDECREF(*list);
        *list = NULL;
    }
}

static inline PyObject *none(void)
{
    return keep(Py_None);
}

/* Name of an attribute, and the variable for its interned string. */
struct name {
    PyObject **place;
    const char *text;
};

/* Intern the strings of `count` names for the lifetime of the process; return false on an error. */
bool intern(const struct name *names, size_t count);

/* Add the functions of each file. Return -1 with an error. */
int add_batch_content(PyObject *module);
int add_engine_loops(PyObject *module);
int add_store_loops(PyObject *module);
int add_arrivals(PyObject *module);
int add_departures(PyObject *module);
int add_sockets(PyObject *module);

#endif
