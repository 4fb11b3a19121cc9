// Package hostile holds texts for tests alone: what has broken JSON decoders, and ways to break more.
package hostile

import "strings"

// Texts have broken decoders: seeds for fuzz targets and for the comparison with PostgreSQL.
var Texts = []string{
	``, ` `, `{`, `}`, `[`, `]`, `[[`, `[]]`, `{}`, `[]`, `null`, `nul`, `nulll`, `true`, `truefalse`,
	`fals`, `"`, `"\`, `"\u`, `"\u00`, `"\u12`, `"a"`, `"\u0041"`, `"\u0000"`, `{"k\u0000":1}`,
	`{"k":"a\u0000b"}`, `"\\u0000"`, `"\\\u0000"`, `"\\\\u0000"`, `{"C:\\u0000dir":"C:\\u0000dir"}`,
	"\"a\x00b\"", "\"a\nb\"", `"\ud800"`, `"\udc00"`, `"\ud83d\ude00"`, `"\ud83d\ud83d\ude00"`,
	`"\ude00\ud83d"`, `"\ud83dx"`, `"\ud83d\n"`, `"\ud83d\u0041"`, `"\uD83D\uDE00"`, `"\ud83d\\ude00"`,
	"\"\xff\"", "\"\xc3\"", "\"\xc3\xa9\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xc0\x80\"",
	"\"\xf0\x9f\x98\x80\"", "\"\xef\xbf\xbf\"", "\xef\xbb\xbf{}", `0`, `-0`, `-`, `+1`, `01`, `-01`, `1.`,
	`.5`, `1.5`, `1e`, `1e+`, `1e5`, `1E-5`, `1.5e+10`, `0x10`, `NaN`, `Infinity`, `1e131071`,
	`9.99e131071`, `1e131072`, `10e131071`, `-1e131072`, `0.1e131072`, `0.01e131073`, `1e-16383`,
	`1e-16384`, `0e999999`, `0e-16384`, `0.0e5`, `0e1073741822`, `0e1073741823`, `1e99999999999999999999`,
	`0e-99999999999999999999`, `1e00000000000000000000000000000001`,
	`123456789012345678901234567890.123456789012345678901234567890`, `0.1e-16382`, `0.10e-16382`,
	`10e-16384`, `1.0e-16383`, strings.Repeat("9", 131072), strings.Repeat("9", 131073),
	strings.Repeat("0", 5), "0." + strings.Repeat("1", 16383), "0." + strings.Repeat("1", 16384),
	"1" + strings.Repeat("0", 131072) + "e-5", `{"a":1,}`, `[1,]`, `[,1]`, `{"a"}`, `{"a":}`, `{a:1}`,
	`{'a':1}`, `{"a":1 "b":2}`, `[1 2]`, `{"a":1}{"b":2}`, `{"a":1}x`, `//c`, `[1]/**/`, `{"a":1,"a":2}`,
	`{"":{"":""}}`, "\t\r\n [ 1 , 2 ] \n", "\f[]", "\u00a0[]", `"\x41"`, `"\a"`, `"\/\b\f\n\r\t\"\\"`,
	`["` + strings.Repeat("x", 5000) + `"]`, `{"` + strings.Repeat("k", 3000) + `":1}`,
	strings.Repeat("[", 99) + "1" + strings.Repeat("]", 99),
	strings.Repeat("[", 100) + strings.Repeat("]", 100),
	strings.Repeat("[", 101) + strings.Repeat("]", 101),
	strings.Repeat(`{"a":[`, 70) + "0" + strings.Repeat("]}", 70), strings.Repeat("[", 100000),
	strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000),
	strings.Repeat("[", 64) + "}" + strings.Repeat("]", 64),
	strings.Repeat("[", 129) + strings.Repeat("]", 128) + "}",
}
