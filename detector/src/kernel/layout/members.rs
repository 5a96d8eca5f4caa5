//! The members that the programs read, and the arguments that they take: each has to be there and to be what it is taken
//! for. A number that became shorter, or a pointer to something else, would be read all the same, and mean nothing.

use detector_common::layout::Layout;

use super::{Argument, Kernel, Unfit};
use crate::kernel::btf::{Btf, NoMember, Place, Shape, Types};

/// A place whose argument of this index has to be a pointer to this structure.
type Given = (Place, &'static str, usize, &'static str);

/// What the programs take for granted of the places that they are attached to, where the kernel has them.
const GIVEN: [Given; 11] = [
    (Place::Function, "fuse_abort_conn", 0, "fuse_conn"),
    (Place::Function, "fuse_chan_abort", 0, "fuse_chan"),
    (Place::Function, "fuse_request_end", 0, "fuse_req"),
    (Place::Function, "queue_request_and_unlock", 1, "fuse_req"),
    (Place::Function, "fuse_dev_queue_req", 1, "fuse_req"),
    (Place::Tracepoint, "fuse_request_send", 0, "fuse_req"),
    (Place::Tracepoint, "fuse_request_end", 0, "fuse_req"),
    (Place::Tracepoint, "sched_process_exit", 0, "task_struct"),
    (Place::Tracepoint, "signal_generate", 1, "kernel_siginfo"),
    (Place::Tracepoint, "signal_generate", 2, "task_struct"),
    (Place::Tracepoint, "sys_exit", 0, "pt_regs"),
];

/// Refuses a request when the connection is dead.
const GET_REQUEST: &str = "fuse_get_req";

/// The way to a member in one or more kernels: the first that exists counts.
type Ways = &'static [(&'static str, &'static [&'static str])];

/// Looks members up, and keeps what does not fit.
struct Finder<'b, 'a> {
    types: Types<'b, 'a>,
    unfit: Vec<Unfit>,
}

impl Finder<'_, '_> {
    /// The offset of a member of this shape.
    fn find(&mut self, name: &'static str, wanted: &Shape, ways: Ways) -> u32 {
        let found = ways.iter().map(|(structure, path)| self.types.member(structure, path));
        let found = found.reduce(|first, next| if first == Err(NoMember::Absent) { next } else { first });
        let why = match found.unwrap_or(Err(NoMember::Absent)) {
            Ok(member) if member.shape == *wanted => return member.offset,
            Ok(member) => format!("is {}, not {wanted}", member.shape),
            Err(error) => error.to_string(),
        };
        self.unfit.push(Unfit { name, place: None, why });
        Layout::NOWHERE
    }

    fn number(&mut self, name: &'static str, bytes: u32, ways: Ways) -> u32 {
        self.find(name, &Shape::Number(bytes), ways)
    }

    fn pointer(&mut self, name: &'static str, to: &str, ways: Ways) -> u32 {
        self.find(name, &Shape::to(to), ways)
    }

    /// Which of the first two arguments of `fuse_get_req` leads to the connection.
    fn refused_argument(&mut self) -> u32 {
        let arguments = self.types.arguments(Place::Function, GET_REQUEST).unwrap_or_default();
        let leads = |shape: &Shape| *shape == Shape::to("fuse_mount") || *shape == Shape::to("fuse_chan");
        match arguments.iter().take(2).position(leads) {
            Some(0) => 0,
            Some(_) => 1,
            None => {
                let why = "is not given a fuse_mount or fuse_chan among its first two arguments, as far as is known";
                self.unfit.push(Unfit { name: GET_REQUEST, place: Some(Place::Function), why: why.to_owned() });
                0
            }
        }
    }

    /// The places that are given something else. One that is not described may be there all the same: it is tried.
    fn check_given(&mut self) {
        for (place, name, index, structure) in GIVEN {
            let Some(arguments) = self.types.arguments(place, name) else { continue };
            let wanted = Shape::to(structure);
            let why = match arguments.get(index) {
                Some(found) if *found == wanted => continue,
                Some(found) => format!("is given {found} as argument {}, not {wanted}", index + 1),
                None => format!("has no argument {}", index + 1),
            };
            self.unfit.push(Unfit { name, place: Some(place), why });
        }
    }
}

/// Everything that the programs have to know, as far as it fits.
pub(super) fn resolve(btf: &Btf<'_>) -> Kernel {
    let mut finder = Finder { types: Types::new(btf), unfit: Vec::new() };
    finder.check_given();
    let layout = of_fuse(&mut finder);
    let layout = of_tasks(&mut finder, layout);
    let layout = of_registers(&mut finder, layout);
    let victim = finder.types.arguments(Place::Tracepoint, "mark_victim");
    let victim = victim.and_then(|arguments| match arguments.first()? {
        Shape::Pointer(_) => Some(Argument::Pointer),
        _ => Some(Argument::Number),
    });
    Kernel { layout, unfit: finder.unfit, victim, described: true, assumed: false }
}

fn of_fuse(finder: &mut Finder<'_, '_>) -> Layout {
    let has_chan = finder.types.member("fuse_req", &["chan"]) != Err(NoMember::Absent);
    let (owner, owners_connection) =
        if has_chan { ("fuse_chan", "fuse_chan.conn") } else { ("fuse_mount", "fuse_mount.fc") };
    let connected: Ways = &[("fuse_chan", &["connected"]), ("fuse_conn", &["connected"])];
    Layout {
        request_owner: finder.pointer("fuse_req.fm", owner, &[("fuse_req", &["fm"]), ("fuse_req", &["chan"])]),
        owner_connection: finder.pointer(
            owners_connection,
            "fuse_conn",
            if has_chan { &[("fuse_chan", &["conn"])] } else { &[("fuse_mount", &["fc"])] },
        ),
        connection_device: finder.number("fuse_conn.dev", 4, &[("fuse_conn", &["dev"])]),
        connected: finder.number("fuse_conn.connected", 4, connected),
        has_chan: u32::from(has_chan),
        refused_argument: finder.refused_argument(),
        request_flags: finder.number("fuse_req.flags", 8, &[("fuse_req", &["flags"])]),
        request_opcode: finder.number("fuse_req.in.h.opcode", 4, &[("fuse_req", &["in", "h", "opcode"])]),
        request_pid: finder.number("fuse_req.in.h.pid", 4, &[("fuse_req", &["in", "h", "pid"])]),
        reply_error: finder.number("fuse_req.out.h.error", 4, &[("fuse_req", &["out", "h", "error"])]),
        reply_unique: finder.number("fuse_req.out.h.unique", 8, &[("fuse_req", &["out", "h", "unique"])]),
        ..Layout::UNKNOWN
    }
}

/// `TASK_COMM_LEN`, include/linux/sched.h.
const COMM: Shape = Shape::Array { element: 1, count: 16 };

fn of_tasks(finder: &mut Finder<'_, '_>, layout: Layout) -> Layout {
    Layout {
        task_tgid: finder.number("task_struct.tgid", 4, &[("task_struct", &["tgid"])]),
        task_flags: finder.number("task_struct.flags", 4, &[("task_struct", &["flags"])]),
        task_exit_code: finder.number("task_struct.exit_code", 4, &[("task_struct", &["exit_code"])]),
        task_signal: finder.pointer("task_struct.signal", "signal_struct", &[("task_struct", &["signal"])]),
        task_leader: finder.pointer("task_struct.group_leader", "task_struct", &[("task_struct", &["group_leader"])]),
        task_comm: finder.find("task_struct.comm", &COMM, &[("task_struct", &["comm"])]),
        signal_live: finder.number("signal_struct.live", 4, &[("signal_struct", &["live", "counter"])]),
        signal_flags: finder.number("signal_struct.flags", 4, &[("signal_struct", &["flags"])]),
        signal_exit_code: finder.number("signal_struct.group_exit_code", 4, &[("signal_struct", &["group_exit_code"])]),
        siginfo_code: finder.number("kernel_siginfo.si_code", 4, &[("kernel_siginfo", &["si_code"])]),
        ..layout
    }
}

/// arm64 keeps its registers in one array of 31, and the call's number in half a word, whose other half is read with it:
/// where that is not zero, the number is out of bounds and means nothing.
fn of_registers(finder: &mut Finder<'_, '_>, layout: Layout) -> Layout {
    if let Ok(registers) = finder.types.member("pt_regs", &["regs"]) {
        let call = finder.number("pt_regs.syscallno", 4, &[("pt_regs", &["syscallno"])]);
        let (first, second) = (registers.offset, registers.offset.saturating_add(8));
        return Layout { registers_call: call, registers_first: first, registers_second: second, ..layout };
    }
    Layout {
        registers_call: finder.number("pt_regs.orig_ax", 8, &[("pt_regs", &["orig_ax"])]),
        registers_first: finder.number("pt_regs.di", 8, &[("pt_regs", &["di"])]),
        registers_second: finder.number("pt_regs.si", 8, &[("pt_regs", &["si"])]),
        ..layout
    }
}
