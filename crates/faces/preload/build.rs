//! Links the library so that the C code in it (LMDB) uses this library's allocator, not the
//! program's (see src/alloc.rs). The library also starts before all other libraries: their
//! constructors may already use the pool.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    for function in ["malloc", "calloc", "realloc", "free", "strdup"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
}
