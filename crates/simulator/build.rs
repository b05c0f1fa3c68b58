//! What is taken over from libc has to be found by dlsym(3), too.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=getrandom");
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=clock_gettime");
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=syscall");
    println!("cargo:rerun-if-changed=build.rs");
}
