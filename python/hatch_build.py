"""Adds what `make build` has built to the wheel: the extension module, in Python's stable ABI.

Hatchling calls this while it builds the wheel. The environment variable FOREBAY_NATIVE names the
module's file, since hatchling builds nothing itself.
"""
import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeModule(BuildHookInterface):
    def initialize(self, version, build_data):
        module = os.environ.get("FOREBAY_NATIVE")
        if not module:
            raise RuntimeError("FOREBAY_NATIVE doesn't say where the module is: use python/build-wheel")
        build_data["pure_python"] = False
        build_data["tag"] = "cp311-abi3-linux_x86_64"
        build_data["force_include"][module] = "forebay/_native.abi3.so"
