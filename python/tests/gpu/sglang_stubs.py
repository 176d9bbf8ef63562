"""Stand-ins for packages that SGLang imports and its pools, allocators and trees never call, so
that these can be tested on a machine without network. A package that is installed is used.

sgl_kernel's copies between a host pool and the device (io_backend "direct") are called: here they
are plain torch, with the same arguments.
"""

import importlib.abc
import importlib.machinery
import sys
import types

STUBS = ("IPython", "compressed_tensors", "gguf", "sgl_kernel", "tvm_ffi")


class _Anything(type):
    """A class whose attributes are such classes; calling it makes an object."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(cls, name, _Anything(name, (), {}))
        return cls.__dict__[name]

    def __getitem__(cls, _key):
        return cls

    def __or__(cls, _other):
        return cls

    __ror__ = __or__


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Anything(name, (), {"__init__": lambda self, *args, **more: None})
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in STUBS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        if module.__name__ == "sgl_kernel.kvcacheio":
            module.transfer_kv_direct = _layers_to_layers
            module.transfer_kv_all_layer_direct_lf_pf = _layers_to_pages
            module.transfer_kv_per_layer_direct_pf_lf = _pages_to_layer


def install():
    """Behind all other finders: for what is not there."""
    sys.meta_path.append(_Finder())


def _copy(target, target_rows, source, source_rows):
    target[target_rows.to(target.device)] = source[source_rows.to(source.device)].to(target.device)


def _layers_to_layers(src_layers, dst_layers, src_indices, dst_indices, page_size):
    for source, target in zip(src_layers, dst_layers, strict=True):
        _copy(target, dst_indices, source, src_indices)


def _paged(pages, layer, page_size, indices):
    """A page-first buffer [page, layer, token, ..] of one layer, and where the tokens are in it."""
    indices = indices.to(pages.device)
    return pages[:, layer], (indices // page_size, indices % page_size)


def _layers_to_pages(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    n_layers = len(src_ptrs) // 2
    for i, source in enumerate(src_ptrs):
        pages, places = _paged(dst_ptrs[i // n_layers], i % n_layers, page_size, dst_indices)
        pages[places] = source[src_indices.to(source.device)].to(pages.device)


def _pages_to_layer(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        pages, places = _paged(source, layer_id, page_size, src_indices)
        target[dst_indices.to(target.device)] = pages[places].to(target.device)
