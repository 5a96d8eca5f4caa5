use std::path::Path;

use super::*;
use crate::kernel::btf::testing::Builder;

/// What a member of a model is.
#[derive(Clone, Copy)]
enum Kind {
    Number(u32),
    Pointer(&'static str),
    /// Characters.
    Bytes(u32),
    /// A structure that came before.
    Holds(&'static str),
}
use Kind::{Bytes, Holds, Number, Pointer};

type Structure = (&'static str, Vec<(&'static str, Kind)>);

/// A kernel, as far as its types matter here. Tests change it.
#[derive(Clone)]
struct Model {
    structures: Vec<Structure>,
    functions: Vec<(&'static str, Vec<Kind>)>,
    tracepoints: Vec<(&'static str, Vec<Kind>)>,
}

/// What every kernel has.
fn tasks() -> Model {
    let structures = vec![
        ("atomic_t", vec![("counter", Number(4))]),
        ("signal_struct", vec![("live", Holds("atomic_t")), ("group_exit_code", Number(4)), ("flags", Number(4))]),
        ("kernel_siginfo", vec![("si_signo", Number(4)), ("si_errno", Number(4)), ("si_code", Number(4))]),
        ("pt_regs", vec![("si", Number(8)), ("di", Number(8)), ("orig_ax", Number(8))]),
        (
            "task_struct",
            vec![
                ("flags", Number(4)),
                ("exit_code", Number(4)),
                ("tgid", Number(4)),
                ("group_leader", Pointer("task_struct")),
                ("comm", Bytes(16)),
                ("signal", Pointer("signal_struct")),
            ],
        ),
    ];
    let signal = vec![Number(4), Pointer("kernel_siginfo"), Pointer("task_struct"), Number(4), Number(4)];
    let tracepoints = vec![
        ("sched_process_exit", vec![Pointer("task_struct")]),
        ("signal_generate", signal),
        ("mark_victim", vec![Pointer("task_struct")]),
        ("sys_exit", vec![Pointer("pt_regs"), Number(8)]),
    ];
    Model { structures, functions: Vec::new(), tracepoints }
}

/// FUSE as it was until Linux 7.2, with tracepoints.
fn fuse() -> Model {
    let structures = vec![
        ("fuse_in_header", vec![("len", Number(4)), ("opcode", Number(4)), ("unique", Number(8)), ("pid", Number(4))]),
        ("fuse_out_header", vec![("len", Number(4)), ("error", Number(4)), ("unique", Number(8))]),
        ("fuse_in", vec![("h", Holds("fuse_in_header"))]),
        ("fuse_out", vec![("h", Holds("fuse_out_header"))]),
        ("fuse_conn", vec![("connected", Number(4)), ("num_waiting", Number(4)), ("dev", Number(4))]),
        ("fuse_mount", vec![("fc", Pointer("fuse_conn"))]),
        (
            "fuse_req",
            vec![
                ("flags", Number(8)),
                ("in", Holds("fuse_in")),
                ("out", Holds("fuse_out")),
                ("fm", Pointer("fuse_mount")),
            ],
        ),
    ];
    let functions = vec![
        ("fuse_abort_conn", vec![Pointer("fuse_conn")]),
        ("fuse_get_req", vec![Pointer("mnt_idmap"), Pointer("fuse_mount"), Number(1)]),
        ("fuse_request_end", vec![Pointer("fuse_req")]),
    ];
    let tracepoints =
        vec![("fuse_request_send", vec![Pointer("fuse_req")]), ("fuse_request_end", vec![Pointer("fuse_req")])];
    Model { structures, functions, tracepoints }
}

impl Model {
    fn and(self, other: Self) -> Self {
        Self {
            structures: [self.structures, other.structures].concat(),
            functions: [self.functions, other.functions].concat(),
            tracepoints: [self.tracepoints, other.tracepoints].concat(),
        }
    }

    fn members(&mut self, structure: &str) -> &mut Vec<(&'static str, Kind)> {
        &mut self.structures.iter_mut().find(|(name, _)| *name == structure).unwrap().1
    }

    fn set(mut self, structure: &str, member: &str, kind: Kind) -> Self {
        self.members(structure).iter_mut().find(|(name, _)| *name == member).unwrap().1 = kind;
        self
    }

    fn rename(mut self, structure: &str, member: &str, name: &'static str) -> Self {
        self.members(structure).iter_mut().find(|(found, _)| *found == member).unwrap().0 = name;
        self
    }

    fn rename_structure(mut self, structure: &str, name: &'static str) -> Self {
        self.structures.iter_mut().find(|(found, _)| *found == structure).unwrap().0 = name;
        self
    }

    fn encode(&self, mut builder: Builder) -> Builder {
        let mut known: Vec<(&str, u32, u32)> = Vec::new();
        for (name, members) in &self.structures {
            let mut at = 0;
            let mut placed = Vec::new();
            for (member, kind) in members {
                let (id, size, align) = kind.encode(&mut builder, &known);
                at = u32::next_multiple_of(at, align);
                placed.push((*member, id, at));
                at += size;
            }
            let size = at.next_multiple_of(8);
            known.push((name, builder.structure(name, size, &placed), size));
        }
        let ids = |builder: &mut Builder, kinds: &[Kind]| -> Vec<u32> {
            kinds.iter().map(|kind| kind.encode(builder, &known).0).collect()
        };
        for (name, arguments) in &self.functions {
            let arguments = ids(&mut builder, arguments);
            builder.function(name, &arguments);
        }
        for (name, arguments) in &self.tracepoints {
            let arguments = ids(&mut builder, arguments);
            builder.tracepoint(name, &arguments);
        }
        builder
    }

    /// The layout of a kernel that has all this built in.
    fn resolve(&self) -> Kernel {
        let bytes = self.encode(Builder::new()).bytes();
        resolve(&Described { kernel: &bytes, module: None, modules: false }).unwrap()
    }

    /// What does not fit there.
    fn unfit(&self) -> Vec<String> {
        self.resolve().unfit.iter().map(Unfit::to_string).collect()
    }
}

impl Kind {
    /// Type, size and alignment.
    fn encode(self, builder: &mut Builder, known: &[(&str, u32, u32)]) -> (u32, u32, u32) {
        match self {
            Number(bytes) => (builder.int(bytes), bytes, bytes),
            Bytes(count) => {
                let byte = builder.int(1);
                (builder.array(byte, count), count, 1)
            }
            Pointer(name) => {
                // A declaration is enough, as where a structure points to itself.
                let target = builder.raw(name, 7 << 24, 0, &[]);
                (builder.pointer(target), 8, 8)
            }
            Holds(name) => {
                let (_, id, size) = known.iter().find(|(known, ..)| *known == name).unwrap();
                (*id, *size, 8)
            }
        }
    }
}

fn kernel() -> Model {
    tasks().and(fuse())
}

#[test]
fn a_kernel_as_it_should_be_fits() {
    let found = kernel().resolve();
    assert_eq!(found.unfit, []);
    let Layout { request_owner, owner_connection, connection_device, connected, refused_argument, .. } = found.layout;
    assert_eq!((request_owner, owner_connection, connection_device, connected, refused_argument), (48, 0, 8, 0, 1));
    assert!(found.described && !found.assumed);
}

#[test]
fn a_renamed_structure_is_no_kernel_without_types() {
    let found = kernel().rename_structure("fuse_req", "fuse_request").resolve();
    assert!(!found.assumed, "the table of 5.10 is about another kernel");
    assert_eq!(found.layout.request_opcode, Layout::NOWHERE);
    let unfit: Vec<_> = found.unfit.iter().map(Unfit::to_string).collect();
    assert!(unfit.contains(&"fuse_req.in.h.opcode is missing".to_owned()), "{unfit:?}");
    assert!(!unfit.iter().any(|unfit| unfit.contains("fuse_conn")), "{unfit:?}");
}

#[test]
fn only_a_kernel_without_types_of_modules_is_taken_for_5_10() {
    let kernel = tasks().encode(Builder::new()).bytes();
    let with = |modules| resolve(&Described { kernel: &kernel, module: None, modules }).unwrap();
    let (old, newer) = (with(false), with(true));
    assert!(old.assumed && !old.described);
    assert_eq!(old.unfit, []);
    assert_eq!((old.layout.connection_device, newer.layout.connection_device), (336, Layout::NOWHERE));
    assert!(!newer.assumed && !newer.described);
    assert!(newer.unfit.iter().any(|unfit| unfit.name == "fuse_conn.dev"));
}

#[test]
fn a_modules_types_are_used() {
    let base = tasks().encode(Builder::new());
    let module = fuse().encode(Builder::over(&base)).bytes();
    let base = base.bytes();
    let found = resolve(&Described { kernel: &base, module: Some(&module), modules: true }).unwrap();
    assert_eq!(found.unfit, []);
    assert_eq!(found.layout.connection_device, 8);
    let cut = &module[..module.len() - 1];
    let error = resolve(&Described { kernel: &base, module: Some(cut), modules: true }).err().unwrap();
    assert_eq!(error.to_string(), "/sys/kernel/btf/fuse: BTF is cut short in its strings");
}

/// What is not as it was is refused, with the reason, and its offset leads nowhere.
#[test]
fn members_that_became_something_else_are_refused() {
    for (model, reason) in [
        (kernel().set("fuse_req", "fm", Number(8)), "fuse_req.fm is a 8-byte number, not a pointer to fuse_mount"),
        (
            kernel().set("fuse_req", "fm", Pointer("fuse_dev")),
            "fuse_req.fm is a pointer to fuse_dev, not a pointer to fuse_mount",
        ),
        (
            kernel().set("fuse_mount", "fc", Holds("fuse_conn")),
            "fuse_mount.fc is a 16-byte structure, not a pointer to fuse_conn",
        ),
        (
            kernel().set("fuse_conn", "connected", Number(1)),
            "fuse_conn.connected is a 1-byte number, not a 4-byte number",
        ),
        (kernel().set("fuse_conn", "dev", Number(8)), "fuse_conn.dev is a 8-byte number, not a 4-byte number"),
        (kernel().set("fuse_conn", "dev", Pointer("x")), "fuse_conn.dev is a pointer to x, not a 4-byte number"),
        (kernel().rename("fuse_conn", "dev", "device"), "fuse_conn.dev is missing"),
        (
            kernel().set("task_struct", "comm", Bytes(8)),
            "task_struct.comm is an array of 8 1-byte elements, not an array of 16 1-byte elements",
        ),
        (
            kernel().set("task_struct", "signal", Number(8)),
            "task_struct.signal is a 8-byte number, not a pointer to signal_struct",
        ),
    ] {
        assert_eq!(model.unfit(), [reason]);
    }
    let layout = kernel().set("fuse_conn", "connected", Number(1)).resolve().layout;
    assert_eq!(layout.connected, Layout::NOWHERE);
}

#[test]
fn places_that_are_given_something_else_are_refused() {
    let mut model = kernel();
    model.functions[0].1 = vec![Number(8)];
    model.functions[1].1 = vec![Pointer("file"), Number(1)];
    model.tracepoints.retain(|(name, _)| *name != "fuse_request_end");
    model.tracepoints.push(("fuse_request_end", vec![Number(8), Pointer("fuse_req")]));
    assert_eq!(
        model.unfit(),
        [
            "the function fuse_abort_conn is given a 8-byte number as argument 1, not a pointer to fuse_conn",
            "the tracepoint fuse_request_end is given a 8-byte number as argument 1, not a pointer to fuse_req",
            "the function fuse_get_req is not given a fuse_mount or fuse_chan among its first two arguments, as far as is known",
        ]
    );
}

#[test]
fn this_kernels_types_give_a_layout() {
    if !Path::new(KERNEL_BTF).exists() {
        eprintln!("skipped: this kernel has no {KERNEL_BTF}");
        return;
    }
    let kernel = read().unwrap();
    let others: Vec<_> = kernel.unfit.iter().filter(|unfit| !unfit.is_about_fuse()).collect();
    assert_eq!(others, Vec::<&Unfit>::new(), "only FUSE may be missing, in a kernel without it");
    assert_ne!(kernel.layout.task_tgid, Layout::NOWHERE);
}

/// This kernel's own types, with one name changed: whatever else it has under its name, it is not that structure.
#[test]
fn this_kernels_types_with_a_name_changed_are_refused() {
    let Ok(mut bytes) = fs::read(KERNEL_BTF) else {
        eprintln!("skipped: this kernel has no {KERNEL_BTF}");
        return;
    };
    let name = b"\0fuse_req\0";
    let found: Vec<_> = bytes.windows(name.len()).enumerate().filter(|(_, window)| window == name).collect();
    let Some(at) = found.first().map(|(at, _)| *at) else {
        eprintln!("skipped: FUSE is not built in");
        return;
    };
    bytes[at + 1..at + 5].copy_from_slice(b"fusx");
    let kernel = resolve(&Described { kernel: &bytes, module: None, modules: false }).unwrap();
    assert!(!kernel.assumed);
    assert_eq!(kernel.layout.request_opcode, Layout::NOWHERE);
    assert!(kernel.unfit.iter().any(|unfit| unfit.name == "fuse_req.in.h.opcode"), "{:?}", kernel.unfit);
}
