package body

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// ZstdBytes is what the window of one zstd stream may take.
const ZstdBytes = 8 << 20

func decoder(most, concurrency int) (*zstd.Decoder, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(concurrency), zstd.WithDecoderMaxMemory(uint64(most)),
		zstd.WithDecoderMaxWindow(ZstdBytes), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("ingest: zstd: %w", err)
	}
	return z, nil
}

// ZstdStream decompresses as it reads, in about ZstdBytes. It reads the beginning at once, and has to be closed.
func ZstdStream(from io.Reader) (*zstd.Decoder, error) {
	return zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(ZstdBytes),
		zstd.WithDecoderLowmem(true))
}

// unzstd decodes the text from raw. What it may come to is reserved before: what its frame says, or the bound.
func (r *Reader) unzstd(b *Body) error {
	var head zstd.Header
	sized := head.Decode(b.raw) == nil && head.HasFCS && !head.Skippable
	if b.find != nil && !(sized && head.FrameContentSize <= unknownBytes) {
		if err := r.knownInZstd(b, int(min(max(head.WindowSize, 64<<10), ZstdBytes))); err != nil {
			return err
		}
	}
	z, most := r.zstd, r.cfg.MaxDecodedBytes
	if b.find != nil {
		z, most = r.zstdUnknown, min(unknownBytes, r.cfg.MaxDecodedBytes)
	}
	need := most
	if sized {
		if head.FrameContentSize > uint64(most) {
			return b.beyond()
		}
		need = max(int(head.FrameContentSize), cap(b.Text))
	}
	if !r.room(b, need) {
		return errFull
	}
	if sized && cap(b.Text) < need {
		b.Text = make([]byte, 0, need)
	}
	var err error
	b.Text, err = z.DecodeAll(b.raw, b.Text)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded) || errors.Is(err, zstd.ErrWindowSizeExceeded):
		return b.beyond()
	case err != nil:
		return err
	case cap(b.Text) > need: // of several frames
		if !r.Reserve(&b.hold, cap(b.Text)-need) {
			return errFull
		}
	default:
		r.Return(&b.hold, need-cap(b.Text))
	}
	return nil
}

// beyond is the error of a body that is larger than it may be.
func (b *Body) beyond() error {
	if b.find != nil {
		return errUnknown
	}
	return errExpands
}

// knownInZstd looks for a write key in the first part of a compressed body.
func (r *Reader) knownInZstd(b *Body, window int) error {
	const part = 64 << 10
	if !r.room(b, window+part) {
		return errFull
	}
	defer r.Return(&b.hold, window+part)
	z, err := ZstdStream(bytes.NewReader(b.raw))
	if err != nil {
		return err
	}
	defer z.Close()
	text := make([]byte, part)
	n, _ := io.ReadFull(z, text) // an error is met again where all is decoded
	return r.known(b, text[:n], part+1)
}
