// SPDX-License-Identifier: Apache-2.0

// Package schema encodes the JSON that scripts read: what krpingctl prints with --json, and what the agent's
// web page reads.
package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// Version is "version" of each object. Adding a field does not change it; removing a field, or changing its
// name, type or meaning, does. agent/krpingctl/testdata/schemas.txt has all fields.
const Version = 1

// Marshal encodes a struct, or what it points to, as an object on one line, whose first member is Version. An
// empty list is [], not null: nil slices in v are made empty.
func Marshal(v any) ([]byte, error) {
	value := reflect.Indirect(reflect.ValueOf(v))
	copied := reflect.New(value.Type())
	copied.Elem().Set(value)
	noNulls(copied.Elem())
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // commands contain &&
	if err := encoder.Encode(copied.Interface()); err != nil {
		return nil, err
	}
	line := bytes.TrimSuffix(text.Bytes(), []byte("\n"))
	if _, has := value.Type().FieldByName("Version"); has && bytes.HasPrefix(line, []byte(`{"version":`)) {
		return line, nil
	}
	first := fmt.Sprintf(`{"version":%d,`, Version)
	if bytes.HasPrefix(line, []byte("{}")) {
		first = first[:len(first)-1]
	}
	return append([]byte(first), line[1:]...), nil
}

// noNulls makes nil slices and maps empty, in v and in what it contains. v can be set.
func noNulls(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noNulls(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				noNulls(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			noNulls(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	}
}
