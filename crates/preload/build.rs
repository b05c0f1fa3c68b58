//! Links the library so that the C code in it (LMDB) uses our allocator, not the
//! program's: see src/alloc.rs.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for function in ["malloc", "calloc", "realloc", "free", "strdup"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={function}");
    }
}
