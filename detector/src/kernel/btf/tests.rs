use proptest::prelude::*;

use super::testing::Builder;
use super::*;

/// struct inner { int value; }; struct outer { long; union { struct inner inner; }; };
/// a tracepoint `thing(struct outer *, int)` and a function `work(int, struct outer *)`.
fn sample() -> Builder {
    let mut builder = Builder::new();
    let int = builder.int(4);
    let inner = builder.structure("inner", 4, &[("value", int, 0)]);
    let union = builder.union(4, &[("inner", inner, 0)]);
    let outer = builder.structure("outer", 16, &[("", union, 8)]);
    let pointer = builder.pointer(outer);
    builder.tracepoint("thing", &[pointer, int]);
    builder.function("work", &[int, pointer]);
    builder
}

fn member(bytes: &[u8], structure: &str, path: &[&str]) -> Result<(u32, Shape), NoMember> {
    let btf = Btf::parse(bytes, None).unwrap();
    Types::new(&btf).member(structure, path).map(|member| (member.offset, member.shape))
}

#[test]
fn members_are_found_through_anonymous_unions() {
    let bytes = sample().bytes();
    assert_eq!(member(&bytes, "outer", &["inner"]), Ok((8, Shape::Structure(4))));
    assert_eq!(member(&bytes, "outer", &["inner", "value"]), Ok((8, Shape::Number(4))));
    assert_eq!(member(&bytes, "outer", &["nothing"]), Err(NoMember::Absent));
    assert_eq!(member(&bytes, "outer", &["inner", "value", "deeper"]), Err(NoMember::Absent));
    assert_eq!(member(&bytes, "nothing", &["inner"]), Err(NoMember::Absent));
}

#[test]
fn what_a_member_is_is_told() {
    let mut builder = Builder::new();
    let (byte, long) = (builder.int(1), builder.int(8));
    let other = builder.structure("other", 8, &[("x", long, 0)]);
    let (to_other, to_byte) = (builder.pointer(other), builder.pointer(byte));
    let (named, characters) = (builder.typedef("other_t", to_other), builder.array(byte, 16));
    builder.structure("all", 48, &[("a", named, 0), ("b", to_byte, 8), ("c", characters, 16), ("d", byte, 32)]);
    let bytes = builder.bytes();
    let shape = |name| member(&bytes, "all", &[name]).map(|(_, shape)| shape);
    assert_eq!(shape("a"), Ok(Shape::to("other")));
    assert_eq!(shape("b"), Ok(Shape::to("")));
    assert_eq!(shape("c"), Ok(Shape::Array { element: 1, count: 16 }));
    assert_eq!(shape("d"), Ok(Shape::Number(1)));
}

#[test]
fn a_bit_field_has_no_byte_of_its_own() {
    let mut builder = Builder::new();
    let int = builder.int(4);
    builder.structure("holder", 4, &[("bits", int, 0)]);
    // The same with the kind flag, and a width of one bit at bit 3.
    let mut flagged = Builder::new();
    let int = flagged.int(4);
    let whole = flagged.raw("bits", kind::STRUCT << 24, 0, &[]);
    assert_eq!(whole, 2);
    flagged.raw("holder", 1 << 31 | kind::STRUCT << 24 | 1, 4, &[5, int, 1 << 24 | 3]);
    // The string at 5 is the second one: "\0int\0bits\0".
    assert_eq!(member(&builder.bytes(), "holder", &["bits"]), Ok((0, Shape::Number(4))));
    assert_eq!(member(&flagged.bytes(), "holder", &["bits"]), Err(NoMember::BitField));
}

#[test]
fn a_structure_that_contains_itself_has_an_end() {
    let mut builder = Builder::new();
    let own = builder.next();
    builder.structure("endless", 8, &[("", own, 0), ("", own, 0), ("", own, 0)]);
    assert_eq!(member(&builder.bytes(), "endless", &["x"]), Err(NoMember::Senseless));

    // Two members a level, each holding the next level: 2^32 ways for 33 types.
    let mut builder = Builder::new();
    for level in 0..40 {
        let next = builder.next() + 1;
        builder.structure(if level == 0 { "wide" } else { "" }, 8, &[("", next, 0), ("", next, 0)]);
    }
    assert_eq!(member(&builder.bytes(), "wide", &["x"]), Err(NoMember::Senseless));

    let mut builder = Builder::new();
    let own = builder.next();
    builder.typedef("loop", own);
    builder.structure("holder", 8, &[("x", own, 0)]);
    assert_eq!(member(&builder.bytes(), "holder", &["x"]), Ok((0, Shape::Other)));
}

#[test]
fn a_member_beyond_its_structures_end_is_refused() {
    let mut builder = Builder::new();
    let int = builder.int(4);
    builder.structure("short", 6, &[("fits", int, 0), ("over", int, 4)]);
    let bytes = builder.bytes();
    assert_eq!(member(&bytes, "short", &["fits"]), Ok((0, Shape::Number(4))));
    assert_eq!(member(&bytes, "short", &["over"]), Err(NoMember::Senseless));
}

#[test]
fn structures_of_one_name_have_to_agree() {
    let mut builder = Builder::new();
    let int = builder.int(4);
    builder.structure("twice", 8, &[("same", int, 0), ("moved", int, 4)]);
    builder.structure("twice", 12, &[("same", int, 0), ("moved", int, 8)]);
    let bytes = builder.bytes();
    assert_eq!(member(&bytes, "twice", &["same"]), Ok((0, Shape::Number(4))));
    assert_eq!(member(&bytes, "twice", &["moved"]), Err(NoMember::Ambiguous));
}

#[test]
fn arguments_are_told_apart() {
    let bytes = sample().bytes();
    let btf = Btf::parse(&bytes, None).unwrap();
    let mut types = Types::new(&btf);
    let expected = [Shape::to("outer"), Shape::Number(4)];
    assert_eq!(types.arguments(Place::Tracepoint, "thing").as_deref(), Some(expected.as_slice()));
    assert_eq!(types.arguments(Place::Tracepoint, "other"), None);
    let expected = [Shape::Number(4), Shape::to("outer")];
    assert_eq!(types.arguments(Place::Function, "work").as_deref(), Some(expected.as_slice()));
    assert_eq!(types.arguments(Place::Function, "outer"), None, "no function");
}

#[test]
fn split_btf_counts_on_from_its_base() {
    let base = sample();
    let mut module = Builder::over(&base);
    // `outer` is the fourth type of the base.
    module.structure("more", 16, &[("outer", 4, 0)]);
    let (base, module) = (base.bytes(), module.bytes());
    let base = Btf::parse(&base, None).unwrap();
    let module = Btf::parse(&module, Some(&base)).unwrap();
    let mut types = Types::new(&module);
    assert_eq!(types.member("more", &["outer", "inner", "value"]).map(|member| member.offset), Ok(8));
    assert_eq!(types.member("outer", &["inner"]).map(|member| member.offset), Ok(8));
}

#[test]
fn what_is_no_btf_is_refused() {
    assert_eq!(Btf::parse(b"", None).err(), Some(BtfError::Short("header")));
    assert_eq!(Btf::parse(b"\x7fELF", None).err(), Some(BtfError::Magic(0x457f)));
    let mut unknown = Builder::new();
    unknown.raw("", 31 << 24, 0, &[]);
    assert_eq!(Btf::parse(&unknown.bytes(), None).err(), Some(BtfError::Kind { id: 1, kind: 31 }));
    let mut newer = sample().bytes();
    newer[2] = 2;
    assert_eq!(Btf::parse(&newer, None).err(), Some(BtfError::Version(2)));
}

#[test]
fn what_is_cut_short_is_refused() {
    let bytes = sample().bytes();
    for length in 0..bytes.len() {
        let cut = Btf::parse(&bytes[..length], None).err();
        assert!(matches!(cut, Some(BtfError::Short(_))), "{length} of {} bytes: {cut:?}", bytes.len());
    }
    // In the middle of a type, with lengths that agree.
    let mut types = Builder::new();
    types.raw("", kind::STRUCT << 24 | 3, 8, &[0, 0]);
    assert_eq!(Btf::parse(&types.bytes(), None).err(), Some(BtfError::Short("types")));
}

proptest! {
    #[test]
    fn damaged_btf_never_panics(at in 0..600_usize, byte: u8, cut in 0..600_usize) {
        let mut bytes = sample().bytes();
        if let Some(target) = bytes.get_mut(at) {
            *target = byte;
        }
        bytes.truncate(cut);
        if let Ok(btf) = Btf::parse(&bytes, None) {
            let mut types = Types::new(&btf);
            let _ = types.member("outer", &["inner", "value"]);
            let _ = (types.arguments(Place::Tracepoint, "thing"), types.arguments(Place::Function, "work"));
        }
    }
}
