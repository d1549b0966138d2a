// Command facts prints what a CSI definition fixes on the wire, one fact a line, so that two definitions can be
// compared with comm(1). Without -set it describes the definition embedded in the published Go module.
package main

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"regexp"
	"sort"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

type facts []string

func (f *facts) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// options renders the options of a definition; prototext varies its blanks on purpose, so they are made even.
func options(o protoreflect.ProtoMessage) string {
	if o == nil || !o.ProtoReflect().IsValid() {
		return "[]"
	}
	return "[" + strings.Join(strings.Fields(prototext.MarshalOptions{EmitUnknown: true}.Format(o)), " ") + "]"
}

func kind(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return string(f.Message().FullName())
	case f.Enum() != nil:
		return "enum " + string(f.Enum().FullName())
	}
	return f.Kind().String()
}

func (f *facts) field(d protoreflect.FieldDescriptor) {
	oneof := "-"
	if c := d.ContainingOneof(); c != nil {
		oneof = string(c.Name())
	}
	f.add("field %s = %d %s %s presence=%t packed=%t oneof=%s json=%s %s", d.FullName(), d.Number(), d.Cardinality(),
		kind(d), d.HasPresence(), d.IsPacked(), oneof, d.JSONName(), options(d.Options()))
}

func (f *facts) extensions(ds protoreflect.ExtensionDescriptors) {
	for i := 0; i < ds.Len(); i++ {
		d := ds.Get(i)
		f.add("extend %s %s = %d %s %s %s", d.ContainingMessage().FullName(), d.FullName(), d.Number(), d.Cardinality(),
			kind(d), options(d.Options()))
	}
}

func (f *facts) enums(ds protoreflect.EnumDescriptors) {
	for i := 0; i < ds.Len(); i++ {
		d := ds.Get(i)
		f.add("enum %s %s", d.FullName(), options(d.Options()))
		for j := 0; j < d.Values().Len(); j++ {
			v := d.Values().Get(j)
			f.add("value %s.%s = %d %s", d.FullName(), v.Name(), v.Number(), options(v.Options()))
		}
		for j := 0; j < d.ReservedRanges().Len(); j++ {
			r := d.ReservedRanges().Get(j)
			f.add("reserved %s %d to %d", d.FullName(), r[0], r[1])
		}
		for j := 0; j < d.ReservedNames().Len(); j++ {
			f.add("reserved %s %s", d.FullName(), d.ReservedNames().Get(j))
		}
	}
}

func (f *facts) messages(ds protoreflect.MessageDescriptors) {
	for i := 0; i < ds.Len(); i++ {
		d := ds.Get(i)
		f.add("message %s %s", d.FullName(), options(d.Options()))
		for j := 0; j < d.Fields().Len(); j++ {
			f.field(d.Fields().Get(j))
		}
		for j := 0; j < d.ReservedRanges().Len(); j++ {
			r := d.ReservedRanges().Get(j)
			f.add("reserved %s %d to %d", d.FullName(), r[0], r[1]-1)
		}
		for j := 0; j < d.ReservedNames().Len(); j++ {
			f.add("reserved %s %s", d.FullName(), d.ReservedNames().Get(j))
		}
		f.extensions(d.Extensions())
		f.enums(d.Enums())
		f.messages(d.Messages())
	}
}

func (f *facts) services(ds protoreflect.ServiceDescriptors) {
	stream := map[bool]string{true: "stream "}
	for i := 0; i < ds.Len(); i++ {
		d := ds.Get(i)
		f.add("service %s %s", d.FullName(), options(d.Options()))
		for j := 0; j < d.Methods().Len(); j++ {
			m := d.Methods().Get(j)
			f.add("rpc %s (%s%s) returns (%s%s) %s", m.FullName(), stream[m.IsStreamingClient()], m.Input().FullName(),
				stream[m.IsStreamingServer()], m.Output().FullName(), options(m.Options()))
		}
	}
}

func describe(d protoreflect.FileDescriptor) facts {
	f := facts{}
	f.add("file package=%s syntax=%s", d.Package(), d.Syntax())
	f.extensions(d.Extensions())
	f.services(d.Services())
	f.enums(d.Enums())
	f.messages(d.Messages())
	sort.Strings(f)
	return f
}

// ours reads csi.proto out of a descriptor set; it stays out of the global registry, where the published one lives.
func ours(path string) (protoreflect.FileDescriptor, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	set := &descriptorpb.FileDescriptorSet{}
	if err := proto.Unmarshal(raw, set); err != nil {
		return nil, err
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		return nil, err
	}
	return files.FindFileByPath("csi.proto")
}

var sample = regexp.MustCompile(`^(GOLDEN|LEGACY)\((\w+), R"\((.*)\)", "([0-9a-f]*)"\)$`)

// encoded compares every sample of a golden table that starts with word with what the published definition makes of
// its text. The order of fields is each library's own choice, so the bytes are decoded and then must have the same
// content, nothing unknown among it, and the same length.
func encoded(path, word string) (wrong []string, count int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "//") || lines.Text() == "" {
			continue
		}
		part := sample.FindStringSubmatch(lines.Text())
		if part == nil {
			return nil, count, fmt.Errorf("%s: not a sample: %s", path, lines.Text())
		}
		if part[1] != word {
			continue
		}
		count++
		kind, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("csi.v1." + part[2]))
		if err != nil {
			return nil, count, fmt.Errorf("%s: %s: %w", path, part[2], err)
		}
		message := kind.New().Interface()
		if err := prototext.Unmarshal([]byte(part[3]), message); err != nil {
			return nil, count, fmt.Errorf("%s: %s: %w", path, part[2], err)
		}
		published, err := proto.MarshalOptions{Deterministic: true}.Marshal(message)
		if err != nil {
			return nil, count, fmt.Errorf("%s: %s: %w", path, part[2], err)
		}
		table, err := hex.DecodeString(part[4])
		if err != nil {
			return nil, count, fmt.Errorf("%s: %s: %w", path, part[2], err)
		}
		decoded := kind.New().Interface()
		if proto.Unmarshal(table, decoded) != nil || !proto.Equal(decoded, message) || len(table) != len(published) {
			wrong = append(wrong, fmt.Sprintf("%s {%s}\n  table     %x\n  published %x", part[2], part[3], table, published))
		}
	}
	return wrong, count, lines.Err()
}

func main() {
	set := flag.String("set", "", "describe csi.proto of this descriptor set instead of the published definition")
	golden := flag.String("golden", "", "check the samples of this table against the published definition")
	word := flag.String("samples", "GOLDEN", "which samples to check: GOLDEN or LEGACY")
	flag.Parse()
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "facts:", err)
		os.Exit(2)
	}
	if *golden != "" {
		wrong, count, err := encoded(*golden, *word)
		if err != nil {
			fail(err)
		}
		for _, w := range wrong {
			fmt.Println(w)
		}
		fmt.Fprintf(os.Stderr, "%d %s samples, %d differ\n", count, *word, len(wrong))
		if len(wrong) > 0 || count == 0 {
			os.Exit(1)
		}
		return
	}
	file := protoreflect.FileDescriptor(csi.File_csi_proto)
	if *set != "" {
		var err error
		if file, err = ours(*set); err != nil {
			fail(err)
		}
	}
	for _, line := range describe(file) {
		fmt.Println(line)
	}
}
