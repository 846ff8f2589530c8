# SPDX-License-Identifier: Apache-2.0
"""The Spack recipe of ngd (docs/hpc.md)."""

from spack.package import conflicts, depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyNgdRuntime(PythonPackage):
    """Train neural networks on many CPU processes: a compiler in which the collective is an op."""

    homepage = "https://pypi.org/project/ngd-runtime/"
    pypi = "ngd_runtime/ngd_runtime-0.1.0.tar.gz"

    license("Apache-2.0", checked_by="ngd")

    # `spack checksum py-ngd-runtime` adds the line of a release. A clone is built with
    # `spack dev-build py-ngd-runtime@=main`.
    version("main")

    variant(
        "mode",
        default="mlsl",
        values=("mlsl", "ompi", "off"),
        multi=False,
        description="ranks of one host (mlsl), of many hosts by Open MPI (ompi), or one rank (off)",
    )
    variant("onednn", default=True, description="oneDNN does what it has kernels for")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.26:", type="build")
    depends_on("ninja", type="build")
    depends_on("python@3.11:", type=("build", "link", "run"))
    depends_on("py-scikit-build-core@0.11:", type="build")
    depends_on("py-cython@3.1:", type="build")
    depends_on("py-cython-cmake@0.2:", type="build")
    depends_on("py-numpy@2:", type=("build", "run"))
    depends_on("py-ml-dtypes@0.4:", type=("build", "run"))
    depends_on("openmpi@2.1.1:", when="mode=ompi")
    depends_on("onednn@3: cpu_runtime=omp", when="+onednn")

    conflicts("%gcc@:10", msg="ngd is written in C++20: gcc 11 or newer")
    conflicts("platform=darwin", msg="ngd runs on Linux")

    def config_settings(self, spec, prefix):
        """Return the settings that pip passes to scikit-build-core."""
        return {
            "cmake.define.NGD_DISTRIBUTED_ENABLE": spec.variants["mode"].value.upper(),
            "cmake.define.NGD_ONEDNN": "ON" if spec.satisfies("+onednn") else "OFF",
        }
