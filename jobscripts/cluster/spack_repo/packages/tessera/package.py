# A Spack package of this checkout:
#   spack repo add jobscripts/cluster/spack_repo
#   spack dev-build tessera@main +cuda cuda_arch=90          # from the root of the checkout
from spack.package import *


class Tessera(CMakePackage, CudaPackage):
    """Trains GPT and mixture-of-experts language models with sharded optimizers in low precision, on MPI ranks."""

    license("Apache-2.0")
    version("main")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("mpi")
    depends_on("hdf5@1.10: +mpi")
    depends_on("kokkos@4.7: +openmp cxxstd=20", when="~cuda")
    depends_on("kokkos@4.7: +cuda +serial cxxstd=20", when="+cuda")
    for arch in CudaPackage.cuda_arch_values:
        depends_on(f"kokkos cuda_arch={arch}", when=f"+cuda cuda_arch={arch}")
    depends_on("nccl", when="+cuda")
    depends_on("cudnn@9", when="+cuda")
    depends_on("onednn", when="~cuda")
    depends_on("fmt@9:")
    depends_on("yaml-cpp")
    depends_on("cli11@2")
    depends_on("nlohmann-json")
    depends_on("openssl@1.1:")
    depends_on("icu4c")
    conflicts("cuda_arch=none", when="+cuda", msg="cuda_arch names the GPUs, as Kokkos has them: cuda_arch=90")

    generator("ninja")

    def cmake_args(self):
        args = [self.define_from_variant("TESSERA_CUDA", "cuda"), self.define("TESSERA_TESTS", False), self.define("TESSERA_CPU", "")]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("TESSERA_CUDA_ARCHITECTURE", self.spec.variants["cuda_arch"].value[0]))
        return args
