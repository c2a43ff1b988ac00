/*
 * What the C files of the extension `bridge._native` share. It uses the limited API of Python 3.11 (PEP 384), so one
 * extension serves every later Python.
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

/* Return a new reference to what `object` has under this name; NULL with an error, or where `object` is NULL. */
PyObject *field(PyObject *object, PyObject *name);

/* Return a new reference to the same object. */
static inline PyObject *keep(PyObject *object)
{
    Py_XINCREF(object);
    return object;
}

/* Return a new reference to the object at a place of a list; NULL with an error where the list is shorter. */
static inline PyObject *listed(PyObject *list, Py_ssize_t place)
{
    return keep(PyList_GetItem(list, place));
}

static inline PyObject *none(void)
{
    return keep(Py_None);
}

/* Add the functions of each file. Return -1 with an error. */
int add_batch_content(PyObject *module);
int add_engine_loops(PyObject *module);
int add_store_loops(PyObject *module);
int add_arrivals(PyObject *module);
int add_departures(PyObject *module);
int add_sockets(PyObject *module);

#endif
