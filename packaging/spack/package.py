# Recipe for Spack. In a repository of packages it is packages/forebay/package.py:
#     spack repo create ~/forebay-repo forebay && mkdir ~/forebay-repo/packages/forebay
#     cp package.py ~/forebay-repo/packages/forebay/ && spack repo add ~/forebay-repo && spack install forebay
# It builds from source, against the system's glibc. No release is published yet: it takes the tag from a
# git repository that FOREBAY_GIT names.

import os

from spack.package import *


class Forebay(Package):
    """Ad hoc file system for HPC jobs: a fast directory from the memory and SSDs of a job's nodes."""

    homepage = "https://forebay.invalid"
    git = os.environ.get("FOREBAY_GIT", "https://forebay.invalid/forebay.git")

    license("Apache-2.0")

    version("0.1.0", tag="v0.1.0")
    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("rust@1.95:", type="build")

    conflicts("platform=darwin", msg="Forebay needs Linux")
    requires("target=x86_64:", msg="Forebay runs on x86-64 only")

    def install(self, spec, prefix):
        cargo = which("cargo", required=True)
        cargo("build", "--locked", "--release", "-p", "forebay-cli", "-p", "forebay-preload", "-p", "forebay-audit",
              "-p", "forebay-verbs", "-p", "forebay-vfd")
        Executable("packaging/install")(prefix)

    def setup_run_environment(self, env):
        env.set("FOREBAY_ROOT", self.prefix)
