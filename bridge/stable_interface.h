/*
 * The stable interface of Python (PEP 384), as far as our C uses it: so our C is compiled without any headers but the
 * compiler's and the C library's, and what is compiled serves every Python.
 */

#ifndef WAYPOST_STABLE_INTERFACE_H
#define WAYPOST_STABLE_INTERFACE_H

#include <stddef.h>
#include <sys/types.h>

typedef struct _object PyObject;
typedef struct _typeobject PyTypeObject;
typedef struct _ts PyThreadState;
typedef ssize_t Py_ssize_t;
typedef PyObject *(*PyCFunctionFast)(PyObject *, PyObject *const *, Py_ssize_t);
typedef struct PyMethodDef {
    const char *name;
    PyCFunctionFast function;
    int flags;
    const char *documentation;
} PyMethodDef;
enum { METH_FASTCALL = 0x80 };
typedef void (*PyCapsule_Destructor)(PyObject *);

extern PyObject _Py_NoneStruct, _Py_FalseStruct, *PyExc_OSError, *PyExc_OverflowError, *PyExc_ValueError;

PyObject *Py_BuildValue(const char *, ...);
void Py_DecRef(PyObject *);
void Py_IncRef(PyObject *);
void PyErr_Clear(void);
PyObject *PyErr_NoMemory(void);
PyObject *PyErr_Occurred(void);
PyObject *PyErr_SetFromErrno(PyObject *);
void PyErr_SetString(PyObject *, const char *);
void *PyMem_Calloc(size_t, size_t);
void PyMem_Free(void *);
void *PyMem_Malloc(size_t);
void *PyMem_Realloc(void *, size_t);
void PyEval_RestoreThread(PyThreadState *);
PyThreadState *PyEval_SaveThread(void);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallNoArgs(PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_GetIter(PyObject *);
int PyObject_IsTrue(PyObject *);
int PyObject_SetAttr(PyObject *, PyObject *, PyObject *);
PyObject *PyType_GenericAlloc(PyTypeObject *, Py_ssize_t);
PyObject *PyBool_FromLong(long);
long PyLong_AsLong(PyObject *);
long long PyLong_AsLongLong(PyObject *);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *);
void *PyLong_AsVoidPtr(PyObject *);
PyObject *PyLong_FromLong(long);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyLong_FromSsize_t(Py_ssize_t);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long);
PyObject *PyLong_FromVoidPtr(void *);
double PyFloat_AsDouble(PyObject *);
PyObject *PyFloat_FromDouble(double);
char *PyBytes_AsString(PyObject *);
int PyBytes_AsStringAndSize(PyObject *, char **, Py_ssize_t *);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
const char *PyUnicode_AsUTF8AndSize(PyObject *, Py_ssize_t *);
PyObject *PyUnicode_FromStringAndSize(const char *, Py_ssize_t);
PyObject *PyUnicode_InternFromString(const char *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
PyObject *PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
int PyList_Append(PyObject *, PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
PyObject *PyList_New(Py_ssize_t);
int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
Py_ssize_t PyList_Size(PyObject *);
int PyDict_DelItem(PyObject *, PyObject *);
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
int PyDict_SetItem(PyObject *, PyObject *, PyObject *);
PyObject *PyIter_Next(PyObject *);
void *PyCapsule_GetPointer(PyObject *, const char *);
PyObject *PyCapsule_New(void *, const char *, PyCapsule_Destructor);
PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *);

#endif
