/* The extension module `bridge._native`. Its functions are in C files next to the Python modules that use them. */
#include "native.h"

#ifndef WAYPOST_DIGEST
#error "compile this with hatch_build.py, which defines WAYPOST_SOURCES and WAYPOST_DIGEST"
#endif

/* The argument has this type; see `takes` for the letters. */
static bool is_of_kind(PyObject *argument, char kind)
{
    switch (kind) {
    case 'l':
        return PyList_Check(argument);
    case 'd':
        return PyDict_Check(argument);
    case 't':
        return PyTuple_Check(argument);
    case 'b':
        return PyBytes_Check(argument);
    case 's':
        return PyUnicode_Check(argument);
    case 'i':
        return PyLong_Check(argument);
    case 'f':
        return PyFloat_Check(argument);
    case 'c':
        return PyType_Check(argument) && PyType_IsSubtype((PyTypeObject *)argument, &PyTuple_Type);
    default:
        return true;
    }
}

bool takes(const char *function, PyObject *const *arguments, Py_ssize_t count, const char *kinds)
{
    Py_ssize_t wanted = (Py_ssize_t)strlen(kinds);
    if (count != wanted) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", function, wanted, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!is_of_kind(arguments[i], kinds[i])) {
            PyErr_Format(PyExc_TypeError, "argument %zd of %s is of the wrong type", i + 1, function);
            return false;
        }
    return true;
}

PyObject *field(PyObject *object, PyObject *name)
{
    return object ? PyObject_GetAttr(object, name) : NULL;
}

bool intern(const struct name *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!(*names[i].place = PyUnicode_InternFromString(names[i].text)))
            return false;
    return true;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "bridge._native",
    .m_doc = "Inner loops of Waypost, in C.",
    .m_size = -1, /* the state of the files is per process */
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module && !PyModule_AddStringConstant(module, "SOURCES", WAYPOST_SOURCES) &&
        !PyModule_AddStringConstant(module, "DIGEST", WAYPOST_DIGEST) && !add_batch_content(module) &&
        !add_engine_loops(module) && !add_store_loops(module) && !add_arrivals(module) && !add_departures(module) &&
        !add_sockets(module))
        return module;
    Py_XDECREF(module);
    return NULL;
}
